// @ts-check
/** @file A matrix as colours, drawn from tiles; zoomed in, the values themselves. */

import { css, inkOn, place, table } from "../colors.js";
import { brief } from "../format.js";
import { ink, onTheme } from "../theme.js";
import { sketch } from "./canvas.js";
import { handle } from "./hand.js";
import { colour, oddOnes } from "./tile_colours.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("../colors.js").Range} Range */
/**
 * `paint` is what is coloured, where that is not the value itself.
 * @typedef {{height: number, width: number, mean: Float32Array, min: Float32Array, max: Float32Array, isExact?: boolean, paint?: Float32Array}} Tile
 */
/**
 * Where tiles come from. Tile (lod, ty, tx) holds cells of 2^lod x 2^lod elements, from row ty * 256 * 2^lod on.
 * @typedef {{lods: number, tile: (lod: number, ty: number, tx: number) => Promise<Tile>}} Source
 */
/** @typedef {{tile: Tile | null, picture: HTMLCanvasElement | null, look: string, used: number, odd: number[]}} Held */

const SIDE = 256;
const MOST_TILES = 40;
const LEAST_ODD = 3; // pixels of what is not finite, however far away it is seen from
const MOST_SEEN = 16; // tiles in one picture: rather a coarser one than a slow one

export class Heatmap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {View} view
   * @param {Source} source
   * @param {Range} range
   * @param {AbortSignal} signal
   * @param {{onTrouble?: (error: unknown) => void, onTile?: () => void}} [more]
   */
  constructor(canvas, view, source, range, signal, more = {}) {
    this.canvas = canvas;
    this.view = view;
    this.source = source;
    this.range = range;
    this.onTrouble = more.onTrouble || (() => {});
    this.onTile = more.onTile || (() => {});
    /** @type {Map<string, Held>} */
    this.held = new Map();
    /** @type {Map<string, Held>} what was shown before, until the new is here */
    this.before = new Map();
    this.time = 0;
    this.ask = sketch(canvas, (context, width, height) => this.draw(context, width, height), signal);
    view.followers.add(this.ask);
    signal.addEventListener("abort", () => view.followers.delete(this.ask));
    onTheme(() => this.forgetPictures(), signal);
    handle(canvas, view, signal);
  }

  /** @param {Source} source @param {Range} range */
  show(source, range) {
    if (source !== this.source) this.forgetTiles();
    this.source = source;
    this.range = range;
    this.ask();
  }

  /** The element's value as far as the tiles in hand know it. @param {number} row @param {number} col @param {"mean" | "paint"} [what] */
  value(row, col, what = "mean") {
    const tile = this.held.get(key(0, Math.floor(row / SIDE), Math.floor(col / SIDE)))?.tile;
    return tile?.[what]?.[(row % SIDE) * tile.width + (col % SIDE)] ?? null;
  }

  /** The tiles are better now than when they came. */
  renew() {
    this.forgetTiles();
    this.ask();
  }

  forgetTiles() {
    const isAnyHere = [...this.held.values()].some((one) => one.tile);
    if (isAnyHere) this.before = this.held;
    this.held = new Map();
  }

  /** Whether something in sight was drawn from a part of its elements. */
  isSampled() {
    return [...this.held.values()].some((one) => one.used === this.time && one.tile?.isExact === false);
  }

  forgetPictures() {
    for (const held of this.held.values()) held.look = "";
    this.ask();
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {number} height
   */
  draw(context, width, height) {
    this.view.resize(width, height);
    this.time += 1;
    context.imageSmoothingEnabled = false;
    const lod = this.lod();
    // The whole in one tile comes first: of a large value the finer ones take their time.
    if (lod > 1 && lod < this.source.lods - 1) this.tile(this.source.lods - 1, 0, 0);
    for (const [ty, tx] of seen(this.view, lod)) this.drawTile(context, lod, ty, tx);
    if (lod === 0 && this.view.sx >= 34 && this.view.sy >= 13) this.write(context);
    this.mark(context);
    this.forgetOld();
  }

  lod() {
    const finest = Math.max(0, Math.floor(Math.log2(1 / Math.max(this.view.sx, this.view.sy))));
    let lod = Math.min(finest, this.source.lods - 1);
    while (lod < this.source.lods - 1 && seen(this.view, lod).length > MOST_SEEN) lod += 1;
    return lod;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} lod
   * @param {number} ty
   * @param {number} tx
   */
  drawTile(context, lod, ty, tx) {
    const held = this.tile(lod, ty, tx);
    if (held.tile) return this.paint(context, held, lod, ty, tx);
    // Until it is here, the same place from a coarser tile.
    for (let up = lod + 1; up < this.source.lods; up++) {
      const coarse = this.held.get(key(up, ty >> (up - lod), tx >> (up - lod)));
      if (coarse?.tile) return this.paint(context, coarse, up, ty >> (up - lod), tx >> (up - lod));
    }
    const before = this.before.get(key(lod, ty, tx));
    return before?.tile ? this.paint(context, before, lod, ty, tx) : undefined;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Held} held
   * @param {number} lod
   * @param {number} ty
   * @param {number} tx
   */
  paint(context, held, lod, ty, tx) {
    const { view } = this;
    const cell = 2 ** lod;
    const tile = /** @type {Tile} */ (held.tile);
    const picture = this.picture(held);
    const x = (tx * SIDE * cell - view.x) * view.sx;
    const y = (ty * SIDE * cell - view.y) * view.sy;
    const [wide, high] = [cell * view.sx, cell * view.sy];
    context.drawImage(picture, x, y, tile.width * wide, tile.height * high);
    if (Math.min(wide, high) >= LEAST_ODD) return;
    // A picture that is drawn smaller loses pixels; one that is not a number must not be among them.
    const colours = table(this.range.scale);
    for (const at of held.odd) {
      context.fillStyle = css(colours[place((tile.paint || tile.mean)[at], this.range)]);
      const [px, py] = [x + ((at % tile.width) + 0.5) * wide, y + (Math.floor(at / tile.width) + 0.5) * high];
      context.fillRect(px - LEAST_ODD / 2, py - LEAST_ODD / 2, LEAST_ODD, LEAST_ODD);
    }
  }

  /** @param {Held} held */
  picture(held) {
    const look = `${this.range.scale} ${this.range.low} ${this.range.high}`;
    const tile = /** @type {Tile} */ (held.tile);
    if (held.picture && held.look === look) return held.picture;
    const picture = held.picture || document.createElement("canvas");
    [picture.width, picture.height] = [tile.width, tile.height];
    const context = /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d"));
    const image = context.createImageData(tile.width, tile.height);
    colour(new Uint32Array(image.data.buffer), tile, this.range);
    context.putImageData(image, 0, 0);
    held.picture = picture;
    held.look = look;
    held.odd = oddOnes(tile);
    return picture;
  }

  /**
   * @param {number} lod
   * @param {number} ty
   * @param {number} tx
   * @returns {Held}
   */
  tile(lod, ty, tx) {
    const name = key(lod, ty, tx);
    const known = this.held.get(name);
    if (known) {
      known.used = this.time;
      return known;
    }
    /** @type {Held} */
    const held = { tile: null, picture: null, look: "", used: this.time, odd: [] };
    const { source } = this;
    this.held.set(name, held);
    source.tile(lod, ty, tx).then(
      (tile) => {
        held.tile = tile;
        if (source !== this.source) return;
        this.ask();
        this.onTile();
      },
      (error) => {
        if (source !== this.source) return;
        this.before = new Map();
        this.ask();
        this.onTrouble(error);
      },
    );
    return held;
  }

  /** @param {CanvasRenderingContext2D} context */
  write(context) {
    const { view, range } = this;
    const colours = table(range.scale);
    context.font = `10.5px ${ink("mono")}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const lastRow = Math.min(view.rows, Math.ceil(view.y + view.height / view.sy));
    const lastCol = Math.min(view.cols, Math.ceil(view.x + view.width / view.sx));
    for (let row = Math.floor(view.y); row < lastRow; row++) {
      for (let col = Math.floor(view.x); col < lastCol; col++) {
        const value = this.value(row, col);
        const painted = this.value(row, col, "paint");
        // Where only what is not finite is shown, only that is named.
        if (value === null || (painted !== null && Number.isFinite(value))) continue;
        context.fillStyle = inkOn(colours[place(painted ?? value, range)]);
        context.fillText(
          brief(value),
          (col + 0.5 - view.x) * view.sx,
          (row + 0.5 - view.y) * view.sy,
          view.sx - 3,
        );
      }
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  mark(context) {
    const { cursor, sx, sy, x, y } = this.view;
    if (!cursor) return;
    const [wide, high] = [Math.max(sx, 7), Math.max(sy, 7)];
    const [left, top] = [(cursor.col + 0.5 - x) * sx - wide / 2, (cursor.row + 0.5 - y) * sy - high / 2];
    context.lineWidth = 3;
    context.strokeStyle = "rgb(0 0 0 / 70%)";
    context.strokeRect(left, top, wide, high);
    context.lineWidth = 1.5;
    context.strokeStyle = "#ffffff";
    context.strokeRect(left, top, wide, high);
  }

  forgetOld() {
    if (this.held.size <= MOST_TILES) return;
    const oldest = [...this.held].sort((one, other) => one[1].used - other[1].used);
    for (const [name] of oldest.slice(0, this.held.size - MOST_TILES)) this.held.delete(name);
  }
}

/** @param {number} lod @param {number} ty @param {number} tx */
function key(lod, ty, tx) {
  return `${lod}/${ty}/${tx}`;
}

/**
 * The tiles of that coarseness that touch what is seen.
 * @param {View} view
 * @param {number} lod
 * @returns {[number, number][]}
 */
function seen(view, lod) {
  const side = SIDE * 2 ** lod;
  const [top, left] = [Math.floor(view.y / side), Math.floor(view.x / side)];
  const bottom = Math.ceil(Math.min(view.rows, view.y + view.height / view.sy) / side);
  const right = Math.ceil(Math.min(view.cols, view.x + view.width / view.sx) / side);
  /** @type {[number, number][]} */
  const found = [];
  for (let ty = top; ty < bottom; ty++) for (let tx = left; tx < right; tx++) found.push([ty, tx]);
  return found;
}
