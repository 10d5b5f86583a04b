// @ts-check
/** @file From the numbers of a tile to its pixels, and which of them are not finite. */

import { place, table } from "../colors.js";

/** @typedef {import("./heatmap.js").Tile} Tile */
/** @typedef {import("../colors.js").Range} Range */

const MOST_ODD = 2000;

/**
 * Of values the mean; of signed ones and errors the extreme, so that a single odd element among thousands is seen.
 * @param {Uint32Array} pixels
 * @param {Tile} tile
 * @param {Range} range
 */
export function colour(pixels, tile, range) {
  const colours = table(range.scale);
  const { min, max } = tile;
  const mean = tile.paint || tile.mean;
  const isExtreme = range.scale !== "values" && min !== max && !tile.paint;
  for (let i = 0; i < pixels.length; i++) {
    const value = isExtreme ? (Math.abs(min[i]) > Math.abs(max[i]) ? min[i] : max[i]) : mean[i];
    pixels[i] = colours[place(value, range)];
  }
}

/** Where a tile is not finite, while that is rare enough to be overlooked. @param {Tile} tile */
export function oddOnes(tile) {
  /** @type {number[]} */
  const found = [];
  for (let i = 0; i < tile.mean.length && found.length <= MOST_ODD; i++)
    if (!Number.isFinite(tile.mean[i])) found.push(i);
  return found.length > MOST_ODD ? [] : found;
}
