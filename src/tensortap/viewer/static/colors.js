// @ts-check
/** @file Colour maps, as tables of 256 colours made from our own control points. */

import { theme } from "./theme.js";

/** @typedef {"values" | "error" | "signed"} Scale */
/** @typedef {{scale: Scale, low: number, high: number}} Range */

// Lightness rises evenly along each, so they also work without colour vision and in grey.
const POINTS = {
  values: ["#2b0f54", "#3f3380", "#37598c", "#2a7b8e", "#23998a", "#45b878", "#93d24c", "#f3e43b"],
  error: ["#161b22", "#2d1f4f", "#5d2a78", "#96377c", "#cf4a6c", "#f2724f", "#fba65c", "#fde9a9"],
  error_light: ["#f6f7f9", "#fbe0a6", "#f8b46a", "#ef7f55", "#d44c66", "#9b3679", "#5d2a78", "#28164a"],
  // Zero has the colour of the paper, in the dark as in the light.
  signed: ["#9fd3ff", "#5aa5f2", "#2b6cb8", "#1b3a5c", "#161b22", "#5c2a24", "#b8442f", "#f0794a", "#ffc08a"],
  signed_light: [
    "#0b3c78",
    "#1f6bb8",
    "#6aaee0",
    "#c3dff2",
    "#f7f8fa",
    "#fbd3be",
    "#ef8d66",
    "#c93f33",
    "#7a0f22",
  ],
};
const ODD = { nan: "#ff3df2", up: "#ffffff", down: "#000000" };

/** @type {Map<string, Uint32Array>} */
const tables = new Map();

/**
 * 256 colours as pixels of a canvas (ABGR), then NaN, +inf, -inf.
 * @param {Scale} scale
 */
export function table(scale) {
  const name = theme() === "light" && scale !== "values" ? `${scale}_light` : scale;
  const known = tables.get(name);
  if (known) return known;
  const made = new Uint32Array(259);
  const points = POINTS[/** @type {keyof typeof POINTS} */ (name)].map(rgb);
  for (let i = 0; i < 256; i++) made[i] = pixel(between(points, i / 255));
  [ODD.nan, ODD.up, ODD.down].forEach((colour, i) => (made[256 + i] = pixel(rgb(colour))));
  tables.set(name, made);
  return made;
}

/** @param {Scale} scale */
export function gradient(scale) {
  const name = theme() === "light" && scale !== "values" ? `${scale}_light` : scale;
  return `linear-gradient(90deg, ${POINTS[/** @type {keyof typeof POINTS} */ (name)].join(", ")})`;
}

/**
 * The place of a value in its table.
 * @param {number} value
 * @param {Range} range
 */
export function place(value, range) {
  if (value !== value) return 256;
  if (value === Infinity) return 257;
  if (value === -Infinity) return 258;
  const span = range.high - range.low;
  const part = span > 0 ? (value - range.low) / span : range.scale === "signed" ? 0.5 : 0;
  return part <= 0 ? 0 : part >= 1 ? 255 : (part * 255 + 0.5) | 0;
}

/**
 * Ink that can be read on a colour of the table.
 * @param {number} colour ABGR
 */
export function inkOn(colour) {
  const [r, g, b] = [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#0d1117" : "#f0f3f6";
}

/** @param {number} colour ABGR */
export function css(colour) {
  return `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
}

/** @param {string} hex @returns {number[]} */
function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/**
 * @param {number[][]} points
 * @param {number} part 0..1
 */
function between(points, part) {
  const at = Math.min(Math.floor(part * (points.length - 1)), points.length - 2);
  const rest = part * (points.length - 1) - at;
  return points[at].map((low, i) => Math.round(low + (points[at + 1][i] - low) * rest));
}

/** @param {number[]} colour */
function pixel([r, g, b]) {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
