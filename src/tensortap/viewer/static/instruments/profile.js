// @ts-check
/** @file How large something is along one axis, as a strip of bars; a click goes there. */

import { brief } from "../format.js";
import { ink } from "../theme.js";
import { sketch, tip } from "./canvas.js";

/** @typedef {{at: number[], width: number, length: number, values: number[], selected: number | null, names?: string[]}} Along */

export class Profile {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(place: number) => void} onPick
   * @param {AbortSignal} signal
   */
  constructor(canvas, onPick, signal) {
    this.canvas = canvas;
    /** @type {Along | null} */
    this.along = null;
    this.tip = tip(signal);
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
    canvas.addEventListener("click", (event) => this.along && onPick(this.place(event.offsetX)), { signal });
    canvas.addEventListener("pointermove", (event) => this.hover(event), { signal });
    canvas.addEventListener("pointerleave", () => this.tip.hide(), { signal });
  }

  /** @param {Along} along */
  show(along) {
    this.along = along;
    this.ask();
  }

  /** @param {number} x */
  place(x) {
    const { length } = /** @type {Along} */ (this.along);
    return Math.min(Math.max(Math.floor((x / this.canvas.clientWidth) * length), 0), length - 1);
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (!this.along) return;
    const place = this.place(event.offsetX);
    const value =
      this.along.values[Math.min(Math.floor(place / this.along.width), this.along.values.length - 1)];
    this.tip.show(`${this.along.names?.[place] ?? place}: ${brief(value)}`, event.clientX, event.clientY);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    const { along } = this;
    if (!along?.length) return;
    const finite = along.values.filter(Number.isFinite);
    const most = Math.max(...finite, 0) || 1;
    const scale = width / along.length;
    const bar = ink("bad");
    context.globalAlpha = 0.75;
    along.values.forEach((value, i) => {
      const wide = Math.max(along.width * scale - (along.width * scale > 4 ? 1 : 0), 0.75);
      const tall = Number.isFinite(value) ? (value / most) * (height - 5) : height;
      context.fillStyle = Number.isFinite(value) ? bar : "#ff3df2";
      context.fillRect(along.at[i] * scale, height - 1 - tall, wide, tall);
    });
    context.globalAlpha = 1;
    context.fillStyle = ink("line");
    context.fillRect(0, height - 1, width, 1);
    if (along.selected === null) return;
    context.fillStyle = ink("accent");
    context.fillRect(along.selected * scale, 0, Math.max(scale, 2), 3);
  }
}
