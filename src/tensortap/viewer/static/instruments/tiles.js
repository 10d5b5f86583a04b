// @ts-check
/** @file Tiles of a value or of a pair, as a heat map wants them. */

import { query, table } from "../api.js";

/** @typedef {import("./heatmap.js").Source} Source */
/** @typedef {import("./heatmap.js").Tile} Tile */
/** @typedef {{axes?: string, index?: string, side?: string, d?: string, number?: number, v?: "odd"}} Look which part is shown, and how; v stays in the page */

/**
 * @param {string} base the address of a value or of a pair
 * @param {Look} look
 * @param {[number, number]} size rows and columns of what is shown
 * @param {AbortSignal} signal
 * @returns {Source}
 */
export function tiles(base, look, [rows, cols], signal) {
  const lods = 1 + Math.max(0, Math.ceil(Math.log2(Math.max(rows, cols, 1) / 256)));
  return {
    lods,
    async tile(lod, y, x) {
      const { facts, columns } = await table(`${base}/tile.bin${query({ ...look, v: null, lod, y, x })}`, {
        signal,
      });
      const { value } = columns;
      return /** @type {Tile} */ ({
        height: facts.height,
        width: facts.width,
        mean: value || columns.mean,
        min: value || columns.min,
        max: value || columns.max,
        isExact: facts.exact !== false,
        paint: look.v === "odd" ? oddness(/** @type {Uint8Array} */ (columns.flags)) : undefined,
      });
    },
  };
}

/** How far up the scale of errors what is not finite is drawn; NaN has a colour of its own. */
export const ODD = { up: 0.82, down: 0.5 };

/** The map of what is not finite. @param {Uint8Array} flags */
function oddness(flags) {
  return Float32Array.from(flags, (flag) => (flag & 1 ? NaN : flag & 2 ? ODD.up : flag & 4 ? ODD.down : 0));
}
