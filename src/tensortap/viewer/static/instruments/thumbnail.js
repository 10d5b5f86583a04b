// @ts-check
/** @file A whole slice as one small picture, drawn anew with each value that comes. */

import { query, real, table as columnsOf } from "../api.js";
import { place, table } from "../colors.js";
import { sketch } from "./canvas.js";

/** @typedef {{height: number, width: number, values: Float32Array, low: number, high: number}} Whole */

export class Thumbnail {
  /** @param {HTMLCanvasElement} canvas @param {AbortSignal} signal */
  constructor(canvas, signal) {
    this.signal = signal;
    /** @type {Whole | null} */
    this.whole = null;
    this.picture = document.createElement("canvas");
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
  }

  /** @param {string} base @param {number[]} shape @param {number} number which value it is */
  async show(base, shape, number) {
    const [rows, cols] = [shape.length > 1 ? shape[shape.length - 2] : 1, shape[shape.length - 1] ?? 1];
    const lod = Math.max(0, Math.ceil(Math.log2(Math.max(rows, cols, 1) / 256)));
    const { facts, columns } = await columnsOf(`${base}/tile.bin${query({ lod, y: 0, x: 0, number })}`, {
      signal: this.signal,
    });
    const values = /** @type {Float32Array} */ (columns.value || columns.mean);
    this.whole = {
      height: facts.height,
      width: facts.width,
      values,
      low: real(facts.low),
      high: real(facts.high),
    };
    this.ask();
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    if (!this.whole) return;
    const { height: rows, width: cols, values, low, high } = this.whole;
    [this.picture.width, this.picture.height] = [cols, rows];
    const inner = /** @type {CanvasRenderingContext2D} */ (this.picture.getContext("2d"));
    const image = inner.createImageData(cols, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = table("values");
    const range = { scale: /** @type {const} */ ("values"), low: low || 0, high: high || 0 };
    for (let i = 0; i < pixels.length; i++) pixels[i] = colours[place(values[i], range)];
    inner.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = cols > width * 2;
    context.drawImage(this.picture, 0, 0, width, height);
  }
}
