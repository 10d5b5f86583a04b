// @ts-check
/** @file The pixels and lines of a divergence map. */

import { place, table } from "../colors.js";

/** @typedef {import("./divergence_map.js").Field} Field */
/** @typedef {import("./divergence_map.js").Part} Part */

/**
 * @param {Uint32Array} pixels
 * @param {Field} field
 * @param {Part} part
 * @param {number} rows
 * @param {number} cols
 */
export function colour(pixels, field, part, rows, cols) {
  const colours = table("error");
  const range = {
    scale: /** @type {const} */ ("error"),
    low: Math.log10(field.low),
    high: Math.log10(field.high),
  };
  // Two decades at least, so that what differs a little does not look far apart; and the palest of what differs
  // still has to be told from what is equal.
  range.low = Math.min(range.low, range.high - 2);
  range.low -= 0.14 * (range.high - range.low);
  const [high, wide, width] = [part.bottom - part.top, part.right - part.left, field.steps.length];
  for (let y = 0; y < rows; y++) {
    const [r0, r1] = [Math.floor((y * high) / rows), Math.max(Math.floor(((y + 1) * high) / rows), 1)];
    for (let x = 0; x < cols; x++) {
      const [c0, c1] = [Math.floor((x * wide) / cols), Math.max(Math.floor(((x + 1) * wide) / cols), 1)];
      const most = largest(
        field.error,
        width,
        part.top + r0,
        part.top + Math.max(r1, r0 + 1),
        part.left + c0,
        part.left + Math.max(c1, c0 + 1),
      );
      pixels[y * cols + x] =
        most < 0 ? 0 : colours[most === 0 ? 0 : Math.min(place(Math.log10(most), range), 255)];
    }
  }
}

/**
 * The largest error of a block; -1 where there is no pair.
 * @param {Float32Array} error
 * @param {number} width
 * @param {number} r0
 * @param {number} r1
 * @param {number} c0
 * @param {number} c1
 */
function largest(error, width, r0, r1, c0, c1) {
  let most = -1;
  for (let row = r0; row < r1; row++) {
    for (let col = c0; col < c1; col++) {
      const value = error[row * width + col];
      if (value > most) most = value;
    }
  }
  return most;
}

/** Where there is no pair: neither equal nor different. @param {CanvasRenderingContext2D} context @param {string} ink */
export function hatched(context, ink) {
  const cell = document.createElement("canvas");
  cell.width = cell.height = 7;
  const inner = /** @type {CanvasRenderingContext2D} */ (cell.getContext("2d"));
  inner.strokeStyle = ink;
  for (const shift of [-7, 0, 7]) line(inner, shift, 7, shift + 7, 0);
  return /** @type {CanvasPattern} */ (context.createPattern(cell, "repeat"));
}

/** @param {CanvasRenderingContext2D} context @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
export function line(context, x0, y0, x1, y1) {
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 * @param {number} thick
 * @param {string} colour
 */
export function circle(context, x, y, radius, thick, colour) {
  context.strokeStyle = colour;
  context.lineWidth = thick;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}
