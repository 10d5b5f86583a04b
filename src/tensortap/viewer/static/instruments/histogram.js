// @ts-check
/** @file How values are spread: one filled shape, others as lines over it. */

import { brief } from "../format.js";
import { AXIS_HEIGHT, axis, sketch, tip } from "./canvas.js";

/** @typedef {{edges: number[], counts: number[], colour: string, label: string, isFilled?: boolean}} Spread */

export class Histogram {
  /** @param {HTMLCanvasElement} canvas @param {AbortSignal} signal */
  constructor(canvas, signal) {
    /** @type {Spread[]} */
    this.spreads = [];
    this.isLog = true;
    this.tip = tip(signal);
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
    canvas.addEventListener("pointermove", (event) => this.hover(event, canvas.clientWidth), { signal });
    canvas.addEventListener("pointerleave", () => this.tip.hide(), { signal });
  }

  /** @param {Spread[]} spreads @param {{isLog?: boolean, said?: (edge: number) => string}} [how] edges that are not values say which */
  show(spreads, how = {}) {
    this.spreads = spreads.filter((one) => one.edges.length > 1);
    this.isLog = how.isLog ?? true;
    this.said = how.said || brief;
    this.ask();
  }

  /** @type {(edge: number) => string} */
  said = brief;

  range() {
    const lows = this.spreads.map((one) => one.edges[0]);
    const highs = this.spreads.map((one) => one.edges[one.edges.length - 1]);
    const [low, high] = [Math.min(...lows), Math.max(...highs)];
    return high > low ? [low, high] : [low - 0.5, low + 0.5];
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    if (!this.spreads.length) return;
    const [low, high] = this.range();
    const most = Math.max(...this.spreads.flatMap((one) => heights(one, this.isLog)), 1e-9);
    const x = (/** @type {number} */ value) => ((value - low) / (high - low)) * (width - 2) + 1;
    const bottom = height - AXIS_HEIGHT;
    const y = (/** @type {number} */ value) => bottom - (value / most) * (bottom - 6);
    for (const spread of this.spreads) outline(context, spread, heights(spread, this.isLog), x, y, bottom);
    const quantity = this.isLog ? "value · log count" : "value · count";
    axis(context, width, height, [this.said(low), quantity, this.said(high)]);
  }

  /** @param {PointerEvent} event @param {number} width */
  hover(event, width) {
    if (!this.spreads.length) return;
    const [low, high] = this.range();
    const value = low + ((event.offsetX - 1) / (width - 2)) * (high - low);
    const lines = this.spreads.map((one) => {
      const at = one.edges.findIndex((edge, i) => edge <= value && value <= one.edges[i + 1]);
      return `${one.label}  ${at < 0 ? 0 : one.counts[at].toLocaleString("en-US")}`;
    });
    this.tip.show([`at ${this.said(value)}`, ...lines].join("\n"), event.clientX, event.clientY);
  }
}

/** @param {Spread} spread @param {boolean} isLog */
function heights(spread, isLog) {
  return spread.counts.map((count) => (isLog ? Math.log10(1 + count) : count));
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Spread} spread
 * @param {number[]} tall
 * @param {(value: number) => number} x
 * @param {(value: number) => number} y
 * @param {number} ground
 */
function outline(context, spread, tall, x, y, ground) {
  context.beginPath();
  context.moveTo(x(spread.edges[0]), ground);
  tall.forEach((value, i) => {
    context.lineTo(x(spread.edges[i]), y(value));
    context.lineTo(x(spread.edges[i + 1]), y(value));
  });
  context.lineTo(x(spread.edges[spread.edges.length - 1]), ground);
  context.strokeStyle = context.fillStyle = spread.colour;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  if (spread.isFilled) {
    context.globalAlpha = 0.32;
    context.fill();
    context.globalAlpha = 1;
  }
  context.stroke();
}
