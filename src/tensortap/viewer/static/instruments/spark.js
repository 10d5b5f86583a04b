// @ts-check
/** @file The last numbers of something that keeps changing, as a small line. */

import { ink } from "../theme.js";
import { sketch } from "./canvas.js";

const KEPT = 150;

export class Spark {
  /** @param {HTMLCanvasElement} canvas @param {AbortSignal} signal @param {{isFromZero?: boolean}} [how] */
  constructor(canvas, signal, how = {}) {
    /** @type {number[]} */
    this.values = [];
    this.isFromZero = how.isFromZero ?? false;
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
  }

  /** @param {number} value */
  push(value) {
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
    this.ask();
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    const finite = this.values.filter(Number.isFinite);
    if (!finite.length) return;
    const low = Math.min(...finite, ...(this.isFromZero ? [0] : []));
    const high = Math.max(...finite);
    const span = high - low || 1;
    const x = (/** @type {number} */ at) =>
      width - 2 - ((this.values.length - 1 - at) / (KEPT - 1)) * (width - 4);
    const y = (/** @type {number} */ value) =>
      high > low ? height - 3 - ((value - low) / span) * (height - 6) : height / 2;
    context.strokeStyle = context.fillStyle = ink("a");
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let isDown = false;
    this.values.forEach((value, at) => {
      if (Number.isFinite(value)) context[isDown ? "lineTo" : "moveTo"](x(at), y(value));
      else oddMark(context, x(at), height);
      isDown = Number.isFinite(value);
    });
    context.stroke();
    const last = this.values[this.values.length - 1];
    if (Number.isFinite(last)) context.fillRect(x(this.values.length - 1) - 1.5, y(last) - 1.5, 3, 3);
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} height */
function oddMark(context, x, height) {
  const before = context.fillStyle;
  context.fillStyle = "#ff3df2";
  context.fillRect(x - 1, 0, 2, height);
  context.fillStyle = before;
}
