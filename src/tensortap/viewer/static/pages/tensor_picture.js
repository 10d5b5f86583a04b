// @ts-check
/** @file A slice as a heat map between rulers: what is under the cursor, and the ends of its colours. */

import { isAborted, json, query } from "../api.js";
import { css, gradient, table } from "../colors.js";
import { el, fill, say } from "../dom.js";
import { brief, number } from "../format.js";
import { words } from "../messages.js";
import { Heatmap } from "../instruments/heatmap.js";
import { ruler } from "../instruments/ruler.js";
import { ODD, tiles } from "../instruments/tiles.js";
import { View } from "../instruments/view.js";
import { onTheme } from "../theme.js";
import { colourRange } from "./colour_range.js";

/** @typedef {import("../colors.js").Range} Range */
/**
 * @typedef {{
 *   base: string, look: {axes: string, index: string, number?: number}, size: [number, number], isOdd: boolean, range: string,
 *   part: number[] | null, pointed?: {row: number, col: number} | null, element: (row: number, col: number) => (number | string)[],
 * }} Shown
 */
/** @typedef {{onMoved: (part: number[] | null) => void, onRange: (low: string, high: string) => void, onDrawn?: () => void}} Acts */

export class Picture {
  /** @param {AbortSignal} signal @param {Acts} acts */
  constructor(signal, acts) {
    this.signal = signal;
    this.acts = acts;
    /** @type {Shown | null} */
    this.shown = null;
    this.drawn = "";
    this.view = new View(1, 1);
    this.ended = new AbortController();
    /** @type {Heatmap | null} */
    this.heat = null;
    /** @type {Range} */
    this.range = { scale: "values", low: 0, high: 1 };
    this.place = el("span", { class: "place" });
    this.value = el("span", { class: "value" });
    this.grain = el("span", { class: "quiet clip" });
    this.trouble = el("p", { class: "bad", role: "status" });
    this.canvas = el("canvas", {
      class: "heat-canvas",
      role: "img",
      label: "Heat map",
      attrs: { tabindex: 0 },
      title: "wheel to zoom, drag to move, double click for all",
    });
    this.down = el("canvas", { class: "ruler is-rows", attrs: { "aria-hidden": "true" } });
    this.across = el("canvas", { class: "ruler is-cols", attrs: { "aria-hidden": "true" } });
    this.ramp = el("div", { class: "ramp" });
    this.element = el(
      "div",
      { class: "picture" },
      el("div", { class: "heat-caption" }, this.place, this.value, this.grain),
      el("div", { class: "picture-grid" }, el("span"), this.across, this.down, this.canvas),
      this.ramp,
      this.trouble,
    );
    onTheme(() => this.label(), signal);
    signal.addEventListener("abort", () => this.ended.abort());
  }

  /** @param {Shown} shown */
  async show(shown) {
    const drawn = JSON.stringify([shown.base, shown.look, shown.isOdd, shown.range]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    try {
      const range = await this.ends(shown);
      if (this.drawn === drawn) this.draw(shown, range);
    } catch (error) {
      if (!isAborted(error)) say(this.trouble, words(error));
    }
  }

  /** @param {Shown} shown @returns {Promise<Range>} */
  async ends({ base, look, isOdd, range }) {
    if (isOdd) return { scale: "error", low: 0, high: 1 };
    return colourRange(range, await json(`${base}/range${query(look)}`, { signal: this.signal }));
  }

  /** @param {Shown} shown @param {Range} range */
  draw(shown, range) {
    const isSameSize = this.shown?.size.join() === shown.size.join();
    this.shown = shown;
    this.range = range;
    if (!isSameSize || !this.heat) this.begin(shown);
    const look = { ...shown.look, ...(shown.isOdd ? { v: /** @type {"odd"} */ ("odd") } : {}) };
    const source = tiles(shown.base, look, shown.size, this.ended.signal);
    if (this.heat) this.heat.show(source, range);
    else
      this.heat = new Heatmap(this.canvas, this.view, source, range, this.ended.signal, {
        onTrouble: (error) => isAborted(error) || say(this.trouble, words(error)),
        onTile: () => {
          this.follow();
          this.acts.onDrawn?.();
        },
      });
    say(this.trouble, "");
    this.label();
    if (shown.pointed) this.view.point(shown.pointed);
    else this.follow();
  }

  /** @param {Shown} shown */
  begin({ size: [rows, cols], part }) {
    this.ended.abort();
    this.ended = new AbortController();
    this.heat = null;
    this.view = new View(rows, cols);
    if (part) this.view.frame(part);
    this.view.followers.add(() => this.follow());
    this.canvas.classList.toggle("is-line", rows === 1);
    ruler(this.down, "rows", this.view, this.ended.signal);
    ruler(this.across, "cols", this.view, this.ended.signal);
  }

  moved = 0;

  follow() {
    clearTimeout(this.moved);
    this.moved = setTimeout(
      () => this.signal.aborted || this.acts.onMoved(this.view.isFitted ? null : this.view.part()),
      250,
    );
    this.tellGrain();
    const { cursor } = this.view;
    if (!cursor || !this.shown) return;
    say(this.place, `[${this.shown.element(cursor.row, cursor.col).join(", ")}]`);
    const known = this.heat?.value(cursor.row, cursor.col) ?? null;
    if (known !== null) say(this.value, number(known));
    else this.ask(cursor.row, cursor.col);
  }

  /** How much one pixel stands for. */
  tellGrain() {
    const side = 2 ** (this.heat?.lod() ?? 0);
    const sampled = this.heat?.isSampled() ? " · sampled, the whole is being read" : "";
    const { rows, cols } = this.view;
    const whole = `${rows.toLocaleString("en-US")} × ${cols.toLocaleString("en-US")}`;
    say(this.grain, side > 1 ? `${whole}, a pixel is ${side} × ${side} elements${sampled}` : whole);
  }

  asking = 0;

  /** Far away from the elements themselves, the server knows them. @param {number} row @param {number} col */
  ask(row, col) {
    clearTimeout(this.asking);
    const { shown } = this;
    const at = shown?.element(row, col) || [];
    if (!shown || at.some((one) => typeof one !== "number")) return say(this.value, "");
    this.asking = setTimeout(async () => {
      const { elements } = await json(`${shown.base}/elements${query({ at: at.join(",") })}`, {
        signal: this.signal,
      }).catch(() => ({ elements: [] }));
      const { cursor } = this.view;
      if (elements.length && cursor?.row === row && cursor.col === col && shown === this.shown)
        say(this.value, elements[0].text);
    }, 80);
    return undefined;
  }

  label() {
    if (this.shown?.isOdd) return fill(this.ramp, oddLegend());
    const { low, high, scale } = this.range;
    const ends = [end("Lowest colour", low), end("Highest colour", high)];
    const changed = () => this.acts.onRange(ends[0].value, ends[1].value);
    for (const one of ends) one.addEventListener("change", changed);
    const [first, last] = ends;
    const bar = el("i");
    bar.style.background = gradient(scale);
    return fill(this.ramp, first, bar, last);
  }

  /** @param {number} row @param {number} col */
  reveal(row, col) {
    this.view.show(row, col);
  }

  renew() {
    this.heat?.renew();
  }
}

/** @param {string} label @param {number} value */
function end(label, value) {
  const input = el("input", {
    class: "ramp-end",
    label,
    title: `${label}: type another`,
    attrs: { inputmode: "decimal", size: 8 },
  });
  input.value = brief(value).replace("−", "-");
  return input;
}

function oddLegend() {
  const colours = table("error");
  return /** @type {[string, number][]} */ ([
    ["NaN", 256],
    ["+inf", Math.round(ODD.up * 255)],
    ["−inf", Math.round(ODD.down * 255)],
    ["a number", 0],
  ]).map(([text, at]) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = css(colours[at]);
    return el("span", { class: "swatch-name" }, swatch, text);
  });
}

/** @param {string | null} text "top,bottom,left,right" */
export function seenPart(text) {
  const part = (text || "").split(",").map(Number);
  return part.length === 4 && part.every(Number.isFinite) ? part : null;
}

/** @param {string | null} text "row,column" of the picture */
export function pointed(text) {
  const [row, col, ...more] = (text || "").split(",").map(Number);
  return Number.isInteger(row) && Number.isInteger(col) && !more.length ? { row, col } : null;
}
