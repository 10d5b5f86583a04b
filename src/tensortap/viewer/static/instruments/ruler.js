// @ts-check
/** @file Which rows or columns a heat map shows: numbers along one of its edges. */

import { ink } from "../theme.js";
import { sketch } from "./canvas.js";
import { ticks } from "./labels.js";

/** @typedef {import("./view.js").View} View */

const APART = { rows: 26, cols: 58 }; // pixels from one number to the next, at least
const EDGE = 1; // the heat map has a border

/**
 * @param {HTMLCanvasElement} canvas
 * @param {"rows" | "cols"} side
 * @param {View} view
 * @param {AbortSignal} signal
 */
export function ruler(canvas, side, view, signal) {
  const isRows = side === "rows";
  const draw = (
    /** @type {CanvasRenderingContext2D} */ context,
    /** @type {number} */ width,
    /** @type {number} */ height,
  ) => {
    const [from, scale, count] = isRows ? [view.y, view.sy, view.rows] : [view.x, view.sx, view.cols];
    const length = isRows ? height : width;
    context.font = `10.5px ${ink("mono")}`;
    context.fillStyle = ink("faint");
    context.textAlign = isRows ? "right" : "center";
    context.textBaseline = "middle";
    for (const { at, place } of marks(from, scale, count, length, APART[side])) {
      if (isRows) {
        context.fillRect(width - 4, place, 4, 1);
        if (place < height - 2) context.fillText(String(at), width - 7, between(place, 6, height - 6));
      } else {
        const half = context.measureText(String(at)).width / 2;
        context.fillRect(place, height - 4, 1, 4);
        if (place < width - half / 2)
          context.fillText(String(at), between(place, half, width - half), height - 11);
      }
    }
  };
  const ask = sketch(canvas, draw, signal);
  view.followers.add(ask);
  signal.addEventListener("abort", () => view.followers.delete(ask));
}

/**
 * Round numbers in sight, and the pixel of each: the middle of its element once that can be told from the next.
 * @param {number} from
 * @param {number} scale
 * @param {number} count
 * @param {number} length
 * @param {number} apart
 */
export function marks(from, scale, count, length, apart) {
  const seen = Math.min(count - from, length / scale);
  const [, step = count] = ticks(Math.max(Math.ceil(seen), 1), length / apart);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at < Math.min(count, from + seen); at += step) {
    found.push({ at, place: Math.round((at + (scale > 4 ? 0.5 : 0) - from) * scale) + EDGE });
  }
  return found;
}

/** @param {number} value @param {number} low @param {number} high */
function between(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
