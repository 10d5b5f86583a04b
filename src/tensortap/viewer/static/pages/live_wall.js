// @ts-check
/** @file What comes from a job: one tile for each name, which shows the newest. */

import { isAborted, real } from "../api.js";
import { el, fill, longName, say } from "../dom.js";
import { brief, dtype, number, plural } from "../format.js";
import { Spark } from "../instruments/spark.js";
import { Thumbnail } from "../instruments/thumbnail.js";

/**
 * @typedef {{key: string, tap: number, name: string, step: number, rank: number, time: number, dtype: string, shape: number[], number: number, statistics: any, value?: any, odd: string}} Came
 */

const REDRAWN = 90; // milliseconds between two pictures of one tile, at least
const EACH = 8; // and more, the more tiles there are

export class Wall {
  /**
   * @param {string} base
   * @param {(key: string) => void} onPick
   * @param {(seconds: number) => void} onShown how old a value was when it came into sight
   * @param {AbortSignal} signal
   */
  constructor(base, onPick, onShown, signal) {
    this.base = base;
    this.onPick = onPick;
    this.onShown = onShown;
    this.signal = signal;
    /** @type {Map<string, Tile>} */
    this.tiles = new Map();
    this.isFrozen = false;
    /** @type {Set<number>} */
    this.ended = new Set();
    this.grid = el("div", { class: "wall-grid" });
    this.none = el(
      "div",
      { class: "wall-none quiet" },
      el("p", null, "Nothing is tapped yet."),
      el("p", null, "Switch something on in the catalog; its values show here as they come."),
    );
    this.element = el("div", { class: "wall" }, this.none, this.grid);
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const tile = this.tiles.get(entry.target.getAttribute("data-key") || "");
        if (tile) tile.isSeen = entry.isIntersecting;
      }
    });
    signal.addEventListener("abort", () => this.watch.disconnect());
  }

  /** @param {Came[]} records */
  come(records) {
    if (this.isFrozen) return;
    for (const record of records.filter((one) => !this.ended.has(one.tap)))
      this.tile(record).come(record, REDRAWN + EACH * this.tiles.size);
    for (const record of records) if (!hasPicture(record)) this.shown(record.time);
  }

  /** Once it is painted. @param {number} time when it was made, in the job */
  shown(time) {
    requestAnimationFrame(() => setTimeout(() => this.onShown(Date.now() / 1000 - time)));
  }

  /** @param {Came} record */
  tile(record) {
    const known = this.tiles.get(record.key);
    if (known) return known;
    const made = new Tile(this, record);
    this.tiles.set(record.key, made);
    this.grid.append(made.element);
    this.watch.observe(made.element);
    this.none.hidden = true;
    return made;
  }

  /** What still comes of it is not shown any more. @param {number} tap @param {boolean} isOver */
  forget(tap, isOver) {
    if (isOver) this.ended.add(tap);
    else this.ended.delete(tap);
    for (const [key, tile] of this.tiles) {
      if (tile.last.tap !== tap || !isOver) continue;
      this.watch.unobserve(tile.element);
      clearTimeout(tile.waiting);
      tile.end.abort();
      tile.element.remove();
      this.tiles.delete(key);
    }
    this.none.hidden = this.tiles.size > 0;
  }
}

class Tile {
  /** @param {Wall} wall @param {Came} first */
  constructor(wall, first) {
    const { base, onPick, signal } = wall;
    this.base = valueBase(base, first);
    /** @type {(time: number) => void} */
    this.onShown = (time) => wall.shown(time);
    this.last = first;
    this.isSeen = true;
    this.isBusy = false;
    this.drawn = 0;
    this.end = new AbortController();
    signal.addEventListener("abort", () => this.end.abort());
    this.moment = el("span", { class: "quiet" });
    this.type = el("span", { class: "quiet clip" });
    this.numbers = el("div", { class: "wall-numbers" });
    this.big = el("div", { class: "wall-big" });
    this.picture = el("canvas", { class: "wall-picture", attrs: { "aria-hidden": "true" } });
    this.line = el("canvas", { class: "wall-line", attrs: { "aria-hidden": "true" } });
    this.thumbnail = new Thumbnail(this.picture, this.end.signal);
    this.spark = new Spark(this.line, this.end.signal);
    this.picture.hidden = !hasPicture(first);
    this.big.hidden = hasPicture(first);
    const rank = first.rank ? ` · rank ${first.rank}` : "";
    this.element = el(
      "button",
      {
        type: "button",
        class: "card wall-tile",
        data: { key: first.key },
        title: first.name,
        on: { click: () => onPick(first.key) },
      },
      el("span", { class: "wall-head" }, longName(first.name, "b")),
      el("span", { class: "wall-head" }, this.type, el("span", { class: "quiet" }, this.moment, rank)),
      this.picture,
      this.big,
      this.line,
      this.numbers,
    );
  }

  /** @param {Came} record @param {number} pause */
  come(record, pause) {
    this.last = record;
    const known = record.statistics;
    say(this.moment, `step ${record.step}`);
    say(this.type, typeWords(record));
    if (record.value !== undefined) say(this.big, number(record.value));
    else if (known && !this.big.hidden)
      fill(this.big, el("span", { class: "wall-what quiet" }, "mean"), el("span", null, number(known.mean)));
    this.element.classList.toggle("is-odd", Boolean(record.odd));
    if (known) {
      say(this.numbers, record.value === undefined ? numbersOf(known, record.odd) : record.odd);
      this.spark.push(known.nan || known.inf ? NaN : known.mean);
    }
    this.paint(pause);
  }

  waiting = 0;

  /** The newest value as a picture; those that come while one is fetched are left out. @param {number} pause */
  paint(pause) {
    if (!hasPicture(this.last) || !this.isSeen || this.isBusy) return;
    clearTimeout(this.waiting);
    const rest = this.drawn + pause - performance.now();
    if (rest > 0) this.waiting = setTimeout(() => this.paint(0), rest);
    else this.fetch(pause);
  }

  /** @param {number} pause */
  async fetch(pause) {
    const { last } = this;
    this.isBusy = true;
    this.drawn = performance.now();
    try {
      await this.thumbnail.show(this.base, last.shape, last.number);
      this.onShown(last.time);
    } catch (error) {
      if (!isAborted(error)) fill(this.numbers, "the value is gone already");
    } finally {
      this.isBusy = false;
    }
    if (this.last !== last && !this.end.signal.aborted) this.paint(pause);
  }
}

/** @param {string} base @param {Came} record */
export function valueBase(base, record) {
  return `${base}/value/${record.tap}/${encodeURIComponent(record.name)}/${record.rank}`;
}

/** @param {Came} record */
function hasPicture(record) {
  return record.shape.some((length) => length > 1);
}

/** @param {Came} record */
function typeWords(record) {
  if (record.dtype === "Statistics")
    return `statistics${record.statistics ? ` of ${plural(record.statistics.count, "element")}` : ""}`;
  return record.shape.length ? `${dtype(record.dtype)}[${record.shape.join(",")}]` : dtype(record.dtype);
}

/** @param {any} known @param {string} odd */
function numbersOf(known, odd) {
  const [mean, std, most] = [known.mean, known.std, known.absmax].map((one) => brief(real(one)));
  return `${mean} ± ${std}  |x| ≤ ${most}${odd ? `  ${odd}` : ""}`;
}
