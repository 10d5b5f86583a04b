// @ts-check
/** @file Each element of A against the same of B: what is equal lies on the line. */

import { brief } from "../format.js";
import { ink } from "../theme.js";
import { AXIS_HEIGHT, axis, sketch } from "./canvas.js";
import { line } from "./strokes.js";

const POINT = 2; // pixels

export class Scatter {
  /** @param {HTMLCanvasElement} canvas @param {AbortSignal} signal */
  constructor(canvas, signal) {
    /** @type {[number, number][]} */
    this.points = [];
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
  }

  /** @param {number[]} a @param {number[]} b */
  show(a, b) {
    const both = a.map((one, at) => /** @type {[number, number]} */ ([one, b[at]]));
    this.points = both.filter(([one, other]) => Number.isFinite(one) && Number.isFinite(other));
    this.ask();
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    if (!this.points.length) return;
    const [low, high] = ends(this.points.flat());
    const x = (/** @type {number} */ value) => ((value - low) / (high - low)) * (width - 6) + 3;
    const y = (/** @type {number} */ value) =>
      height - AXIS_HEIGHT - 3 - ((value - low) / (high - low)) * (height - AXIS_HEIGHT - 6);
    context.strokeStyle = ink("faint");
    context.setLineDash([3, 3]);
    line(context, x(low), y(low), x(high), y(high));
    context.setLineDash([]);
    for (const isApart of [false, true]) {
      context.fillStyle = ink(isApart ? "bad" : "a");
      for (const [one, other] of this.points)
        if ((one !== other) === isApart)
          context.fillRect(x(one) - POINT / 2, y(other) - POINT / 2, POINT, POINT);
    }
    axis(context, width, height, [brief(low), "A across, B up", brief(high)]);
  }
}

/** @param {number[]} values */
function ends(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}
