// @ts-check
/** @file How values run along something: their mean as a line, their reach as a band; a click goes there. */

import { brief } from "../format.js";
import { ink } from "../theme.js";
import { sketch, tip } from "./canvas.js";

/**
 * @typedef {{
 *   at: number[], width: number, length: number, low: number[], mean: number[], high: number[], odd: number[],
 *   selected: number | null, names?: string[],
 * }} Course
 * `at` is where each group of `width` places begins; `odd` counts what is not a number in it
 */

const ROOM = 4;

export class Band {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(place: number) => void} onPick
   * @param {AbortSignal} signal
   */
  constructor(canvas, onPick, signal) {
    this.canvas = canvas;
    /** @type {Course | null} */
    this.course = null;
    this.tip = tip(signal);
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
    canvas.addEventListener("click", (event) => this.course && onPick(this.place(event.offsetX)), { signal });
    canvas.addEventListener("pointermove", (event) => this.hover(event), { signal });
    canvas.addEventListener("pointerleave", () => this.tip.hide(), { signal });
  }

  /** @param {Course | null} course */
  show(course) {
    this.course = course;
    this.ask();
  }

  /** @param {number | null} place */
  select(place) {
    if (!this.course || this.course.selected === place) return;
    this.show({ ...this.course, selected: place });
  }

  /** @param {number} x */
  place(x) {
    const { length } = /** @type {Course} */ (this.course);
    return Math.min(Math.max(Math.floor((x / this.canvas.clientWidth) * length), 0), length - 1);
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const { course } = this;
    if (!course) return;
    const place = this.place(event.offsetX);
    const i = Math.min(Math.floor(place / course.width), course.mean.length - 1);
    const lines = [
      course.names?.[place] ?? `at ${place}`,
      `max   ${brief(course.high[i])}`,
      `mean  ${brief(course.mean[i])}`,
      `min   ${brief(course.low[i])}`,
    ];
    if (course.odd[i] > 0) lines.push(`${course.odd[i]} NaN or Inf`);
    this.tip.show(lines.join("\n"), event.clientX, event.clientY);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    const { course } = this;
    if (!course?.length) return;
    const [low, high] = ends(course);
    const x = (/** @type {number} */ i) => ((course.at[i] + course.width / 2) / course.length) * width;
    const y = (/** @type {number} */ value) =>
      height - ROOM - ((value - low) / (high - low)) * (height - 2 * ROOM);
    context.fillStyle = ink("line");
    if (low < 0 && high > 0) context.fillRect(0, Math.round(y(0)), width, 1);
    if (course.selected !== null)
      mark(context, (course.selected / course.length) * width, width / course.length, height);
    fillBand(context, course, x, y);
    strokeMean(context, course, x, y);
    context.fillStyle = "#ff3df2";
    course.odd.forEach((count, i) => count > 0 && context.fillRect(x(i) - 1.5, 0, 3, height));
  }
}

/** @param {Course} course */
function ends(course) {
  const low = Math.min(...course.low.filter(Number.isFinite));
  const high = Math.max(...course.high.filter(Number.isFinite));
  if (!(high >= low)) return [0, 1];
  return high > low ? [low, high] : [low - 1, high + 1];
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} left
 * @param {number} wide
 * @param {number} height
 */
function mark(context, left, wide, height) {
  context.fillStyle = ink("accent");
  context.globalAlpha = 0.22;
  context.fillRect(left, 0, Math.max(wide, 3), height);
  context.globalAlpha = 1;
  context.fillRect(left, 0, Math.max(wide, 3), 2);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Course} course
 * @param {(i: number) => number} x
 * @param {(value: number) => number} y
 */
function fillBand(context, course, x, y) {
  context.fillStyle = ink("a");
  context.globalAlpha = 0.25;
  const half = Math.max((x(1) - x(0)) / 2 || 2, 0.5);
  course.mean.forEach((_, i) => {
    const [top, bottom] = [y(course.high[i]), y(course.low[i])];
    if (bottom >= top) context.fillRect(x(i) - half, top, 2 * half, Math.max(bottom - top, 1));
  });
  context.globalAlpha = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Course} course
 * @param {(i: number) => number} x
 * @param {(value: number) => number} y
 */
function strokeMean(context, course, x, y) {
  context.strokeStyle = context.fillStyle = ink("a");
  context.lineWidth = 1.5;
  context.beginPath();
  let isDown = false;
  course.mean.forEach((value, i) => {
    if (Number.isFinite(value)) context[isDown ? "lineTo" : "moveTo"](x(i), y(value));
    isDown = Number.isFinite(value);
  });
  context.stroke();
  if (course.mean.length === 1) context.fillRect(x(0) - 2, y(course.mean[0]) - 2, 4, 4);
}
