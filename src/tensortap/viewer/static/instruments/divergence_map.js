// @ts-check
/** @file Tensors in the order they came, against steps: how far two runs are apart, and where that begins. */

import { middle } from "../format.js";
import { ink } from "../theme.js";
import { sketch, tip } from "./canvas.js";
import { labelPlace, labels, ticks } from "./labels.js";
import { circle, colour, hatched, line } from "./strokes.js";

/**
 * @typedef {{
 *   names: string[], kinds: string[], steps: number[], error: Float32Array, low: number, high: number,
 *   first: {row: number, col: number} | null, isAny: boolean,
 * }} Field errors by tensor and step, NaN where there is no pair
 */
/** @typedef {{top: number, bottom: number, left: number, right: number}} Part rows and columns, the last ones excluded */
/** @typedef {{row: number, col: number}} Cell */

const BOTTOM = 22;
const TOP = 4;
const RIGHT = 8;

export class DivergenceMap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {AbortSignal} signal
   * @param {{onPick: (cell: Cell) => void, onBrush: (part: Part | null) => void, words: (cell: Cell) => string}} act
   */
  constructor(canvas, signal, act) {
    this.canvas = canvas;
    this.act = act;
    /** @type {Field | null} */
    this.field = null;
    /** @type {Part} */
    this.part = { top: 0, bottom: 1, left: 0, right: 1 };
    /** @type {Cell | null} */
    this.selected = null;
    /** @type {{from: Cell, to: Cell, x: number, y: number, isMoved: boolean} | null} */
    this.brush = null;
    this.gutter = 90;
    this.tip = tip(signal);
    this.picture = document.createElement("canvas");
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
    this.listen(signal);
  }

  /** @param {Field} field @param {Part | null} part */
  show(field, part) {
    this.field = field;
    this.part = part || { top: 0, bottom: field.names.length, left: 0, right: field.steps.length };
    this.ask();
  }

  /** @param {Cell | null} cell */
  select(cell) {
    this.selected = cell;
    this.ask();
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  draw(context, width, height) {
    const { field } = this;
    if (!field || !field.names.length || !field.steps.length) return;
    this.size(context, width, height);
    this.paint(context, field);
    this.write(context, field);
    if (!field.isAny) this.sayEqual(context);
    if (field.first) this.ring(context, field.first);
    if (this.selected && !isSame(this.selected, field.first)) this.mark(context, this.selected);
    if (this.brush?.isMoved) this.shade(context, this.brush);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  size(context, width, height) {
    const field = /** @type {Field} */ (this.field);
    const { top, bottom, left, right } = this.part;
    context.font = `11px ${ink("mono")}`;
    this.labels = labels(field.names, field.kinds, top, bottom, (height - TOP - BOTTOM) / (bottom - top));
    const widest = Math.max(...this.labels.map((one) => context.measureText(middle(one.text, 26)).width), 20);
    this.gutter = Math.ceil(Math.min(widest + 14, width * 0.34));
    this.sy = (height - TOP - BOTTOM) / (bottom - top);
    this.sx = (width - this.gutter - RIGHT) / (right - left);
    this.width = width;
    this.height = height;
  }

  /**
   * Cells become pixels of their own picture; where there are more cells than pixels, the largest wins.
   * @param {CanvasRenderingContext2D} context
   * @param {Field} field
   */
  paint(context, field) {
    const { top, bottom, left, right } = this.part;
    const ratio = devicePixelRatio || 1;
    const rows = Math.min(bottom - top, Math.floor((this.height - TOP - BOTTOM) * ratio));
    const cols = Math.min(right - left, Math.floor((this.width - this.gutter - RIGHT) * ratio));
    if (rows < 1 || cols < 1) return;
    [this.picture.width, this.picture.height] = [cols, rows];
    const inner = /** @type {CanvasRenderingContext2D} */ (this.picture.getContext("2d"));
    const image = inner.createImageData(cols, rows);
    colour(new Uint32Array(image.data.buffer), field, this.part, rows, cols);
    inner.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const [width, height] = [this.width - this.gutter - RIGHT, this.height - TOP - BOTTOM];
    context.fillStyle = hatched(context, ink("line"));
    context.fillRect(this.gutter, TOP, width, height);
    context.drawImage(this.picture, this.gutter, TOP, width, height);
    context.strokeStyle = ink("line");
    context.lineWidth = 1;
    context.strokeRect(this.gutter - 0.5, TOP - 0.5, width + 1, height + 1);
  }

  /** @param {CanvasRenderingContext2D} context @param {Field} field */
  write(context, field) {
    const { top, left, right } = this.part;
    context.font = `11px ${ink("mono")}`;
    context.fillStyle = ink("faint");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const most = Math.floor((this.gutter - 12) / 6.4);
    for (const label of this.labels || []) {
      const y = TOP + labelPlace(label.row - top, this.sy);
      context.fillText(middle(label.text, most), this.gutter - 8, y);
    }
    context.textBaseline = "alphabetic";
    for (const at of ticks(right - left, (this.width - this.gutter) / 52)) {
      const x = this.gutter + (at + 0.5) * this.sx;
      const isNarrow = at === 0 && this.sx < 20;
      context.textAlign = isNarrow ? "left" : x > this.width - 26 ? "right" : "center";
      context.fillText(
        String(field.steps[left + at]),
        isNarrow ? this.gutter : Math.min(x, this.width - 2),
        this.height - 6,
      );
    }
  }

  /** An empty field is an answer, too. @param {CanvasRenderingContext2D} context */
  sayEqual(context) {
    context.font = `13px ${ink("sans")}`;
    context.fillStyle = ink("faint");
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText("no difference at all", (this.gutter + this.width - RIGHT) / 2, this.height / 2);
  }

  /** @param {CanvasRenderingContext2D} context @param {Cell} cell */
  ring(context, cell) {
    if (!this.holds(cell)) return;
    const [x, y] = this.centre(cell);
    const bright = ink("ring");
    context.setLineDash([3, 3]);
    context.strokeStyle = bright;
    context.globalAlpha = 0.55;
    line(
      context,
      Math.round(x - this.sx / 2) + 0.5,
      TOP,
      Math.round(x - this.sx / 2) + 0.5,
      this.height - BOTTOM,
    );
    context.globalAlpha = 1;
    context.setLineDash([]);
    circle(context, x, y, 7, 3.5, ink("paper"));
    circle(context, x, y, 7, 2, bright);
    context.font = `600 12px ${ink("sans")}`;
    const isLeft = x - this.gutter > 120;
    context.textAlign = isLeft ? "right" : "left";
    context.textBaseline = "middle";
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = ink("card");
    context.strokeText("first difference", x + (isLeft ? -13 : 13), y);
    context.fillStyle = ink("text");
    context.fillText("first difference", x + (isLeft ? -13 : 13), y);
  }

  /** @param {CanvasRenderingContext2D} context @param {Cell} cell */
  mark(context, cell) {
    if (!this.holds(cell)) return;
    const [x, y] = this.centre(cell);
    const [wide, high] = [Math.max(this.sx || 0, 8) + 2, Math.max(this.sy || 0, 8) + 2];
    context.strokeStyle = ink("paper");
    context.lineWidth = 3.5;
    context.strokeRect(x - wide / 2, y - high / 2, wide, high);
    context.strokeStyle = ink("accent");
    context.lineWidth = 2;
    context.strokeRect(x - wide / 2, y - high / 2, wide, high);
  }

  /** @param {CanvasRenderingContext2D} context @param {{from: Cell, to: Cell}} brush */
  shade(context, brush) {
    const part = spanned(brush.from, brush.to);
    const x = this.gutter + (part.left - this.part.left) * this.sx;
    const y = TOP + (part.top - this.part.top) * this.sy;
    context.fillStyle = "rgb(88 166 255 / 22%)";
    context.strokeStyle = ink("accent");
    context.lineWidth = 1.5;
    context.fillRect(x, y, (part.right - part.left) * this.sx, (part.bottom - part.top) * this.sy);
    context.strokeRect(x, y, (part.right - part.left) * this.sx, (part.bottom - part.top) * this.sy);
  }

  sx = 1;
  sy = 1;
  width = 1;
  height = 1;
  /** @type {import("./labels.js").Label[]} */
  labels = [];

  /** @param {Cell} cell */
  holds({ row, col }) {
    const { top, bottom, left, right } = this.part;
    return row >= top && row < bottom && col >= left && col < right;
  }

  /** @param {Cell} cell @returns {[number, number]} */
  centre({ row, col }) {
    return [
      this.gutter + (col - this.part.left + 0.5) * this.sx,
      TOP + (row - this.part.top + 0.5) * this.sy,
    ];
  }

  /** @param {number} x @param {number} y @returns {Cell} */
  near(x, y) {
    const { top, bottom, left, right } = this.part;
    const row = top + Math.floor((y - TOP) / this.sy);
    const col = left + Math.floor((x - this.gutter) / this.sx);
    return { row: Math.min(Math.max(row, top), bottom - 1), col: Math.min(Math.max(col, left), right - 1) };
  }

  /** @param {AbortSignal} signal */
  listen(signal) {
    const on = (/** @type {string} */ name, /** @type {(event: any) => void} */ act) =>
      this.canvas.addEventListener(name, act, { signal });
    on("pointerdown", (event) => {
      if (!this.field || event.button !== 0) return;
      const cell = this.near(event.offsetX, event.offsetY);
      this.brush = { from: cell, to: cell, x: event.offsetX, y: event.offsetY, isMoved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => this.hover(event));
    on("pointerup", () => this.release());
    on("pointerleave", () => this.tip.hide());
    on("dblclick", () => this.act.onBrush(null));
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (!this.field) return;
    const cell = this.near(event.offsetX, event.offsetY);
    if (this.brush) {
      const far = Math.hypot(event.offsetX - this.brush.x, event.offsetY - this.brush.y);
      this.brush = { ...this.brush, to: cell, isMoved: this.brush.isMoved || far > 5 };
      this.ask();
    }
    if (event.offsetX < this.gutter - 4 || event.offsetY > this.height - BOTTOM) return this.tip.hide();
    return this.tip.show(this.act.words(cell), event.clientX, event.clientY);
  }

  release() {
    const { brush } = this;
    this.brush = null;
    this.ask();
    if (!brush) return;
    if (brush.isMoved) this.act.onBrush(spanned(brush.from, brush.to));
    else this.act.onPick(brush.from);
  }
}

/** @param {Cell} one @param {Cell | null} other */
function isSame(one, other) {
  return one.row === other?.row && one.col === other.col;
}

/** @param {Cell} one @param {Cell} other @returns {Part} */
function spanned(one, other) {
  return {
    top: Math.min(one.row, other.row),
    bottom: Math.max(one.row, other.row) + 1,
    left: Math.min(one.col, other.col),
    right: Math.max(one.col, other.col) + 1,
  };
}
