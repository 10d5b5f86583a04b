// @ts-check
/** @file A, B and their difference as three heat maps that move together. */

import { isAborted, json, onNews, query, real } from "../api.js";
import { gradient } from "../colors.js";
import { el, say } from "../dom.js";
import { brief, number } from "../format.js";
import { words } from "../messages.js";
import { Heatmap } from "../instruments/heatmap.js";
import { tiles } from "../instruments/tiles.js";
import { View } from "../instruments/view.js";
import { onTheme } from "../theme.js";

/** @typedef {import("../colors.js").Range} Range */
/** @typedef {"a" | "b" | "d"} Side */
/**
 * @typedef {{
 *   base: string, look: {axes: string, index: string}, size: [number, number], difference: string, isShared: boolean,
 *   pointed: {row: number, col: number} | null, part: number[] | null, element: (row: number, col: number) => (number | string)[],
 * }} Shown
 */
/** @typedef {{element: HTMLElement, canvas: HTMLCanvasElement, title: HTMLElement, place: HTMLElement, value: HTMLElement, low: HTMLElement, high: HTMLElement, ramp: HTMLElement, heat: Heatmap | null, range: Range}} Panel */

const SIDES = /** @type {Side[]} */ (["a", "b", "d"]);
const TITLES = { a: "A", b: "B", d: "B − A" };
const NAMES = /** @type {Record<string, string>} */ ({
  value: "B − A",
  abs: "|B − A|",
  rel: "|B − A| / max(|A|, |B|)",
  ulp: "ULP",
  sign: "sign of B − A",
});
const BLINK = 420; // milliseconds

export class Triptych {
  /** @param {AbortSignal} signal @param {(part: number[] | null) => void} onMoved what is seen; null for all of it */
  constructor(signal, onMoved) {
    this.onMoved = onMoved;
    this.signal = signal;
    /** @type {Shown | null} */
    this.shown = null;
    this.drawn = "";
    /** @type {View} */
    this.view = new View(1, 1);
    this.ended = new AbortController();
    this.timer = 0;
    this.isOther = false;
    this.trouble = el("p", { class: "bad", role: "status" });
    /** @type {Record<Side, Panel>} */
    this.panels = { a: panel("a"), b: panel("b"), d: panel("d") };
    this.row = el(
      "div",
      { class: "triptych" },
      SIDES.map((side) => this.panels[side].element),
    );
    this.element = el("div", null, this.row, this.trouble);
    onTheme(() => SIDES.forEach((side) => this.label(side)), signal);
    onNews(
      "refined",
      (news) => this.shown?.base.endsWith(`/${news.c}/pair/${news.pair}`) && this.renew(),
      signal,
    );
    signal.addEventListener("abort", () => {
      this.ended.abort();
      clearInterval(this.timer);
    });
  }

  /** @param {Shown} shown */
  async show(shown) {
    const drawn = JSON.stringify([shown.base, shown.look, shown.difference, shown.isShared]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const isSameSize = this.shown && this.shown.size.join() === shown.size.join();
    this.shown = shown;
    try {
      const ranges = await this.ranges(shown);
      if (this.drawn === drawn) this.draw(shown, ranges, Boolean(isSameSize));
    } catch (error) {
      if (!isAborted(error)) say(this.trouble, words(error));
    }
  }

  /** @param {Shown} shown @returns {Promise<Record<Side, Range>>} */
  async ranges({ base, look, difference, isShared }) {
    const ask = (/** @type {Side} */ side) =>
      json(`${base}/range${query({ ...look, side, d: side === "d" ? difference : null })}`, {
        signal: this.signal,
      });
    const [a, b, d] = await Promise.all(SIDES.map(ask));
    const own = [a, b].map(spread);
    const both = joined(own);
    const [first, second] = isShared ? [both, both] : own.map((one) => joined([one]));
    return {
      a: { scale: "values", low: first[0], high: first[1] },
      b: { scale: "values", low: second[0], high: second[1] },
      d: apart(d, difference),
    };
  }

  /** @param {Shown} shown @param {Record<Side, Range>} ranges @param {boolean} isSameSize */
  draw(shown, ranges, isSameSize) {
    if (!isSameSize || !this.panels.a.heat) this.begin(shown.size, shown.part);
    for (const side of SIDES) {
      const one = this.panels[side];
      one.range = ranges[side];
      const look = { ...shown.look, side, ...(side === "d" ? { d: shown.difference } : {}) };
      const source = tiles(shown.base, look, shown.size, this.ended.signal);
      if (one.heat) one.heat.show(source, one.range);
      else
        one.heat = new Heatmap(one.canvas, this.view, source, one.range, this.ended.signal, {
          onTrouble: (error) => isAborted(error) || say(this.trouble, words(error)),
          onTile: () => this.follow(),
        });
      this.label(side);
    }
    say(this.panels.d.title, NAMES[shown.difference] || TITLES.d);
    say(this.trouble, "");
    if (shown.pointed) this.view.point(shown.pointed);
    this.isOther = false;
  }

  /** @param {[number, number]} size @param {number[] | null} part */
  begin([rows, cols], part) {
    this.ended.abort();
    this.ended = new AbortController();
    this.view = new View(rows, cols);
    if (part) this.view.frame(part);
    this.view.followers.add(() => this.follow());
    for (const side of SIDES) this.panels[side].heat = null;
  }

  moved = 0;

  /** The values under the cursor; and where it was moved to, once it rests. */
  follow() {
    clearTimeout(this.moved);
    this.moved = setTimeout(
      () => this.signal.aborted || this.onMoved(this.view.isFitted ? null : this.view.part()),
      250,
    );
    const { cursor } = this.view;
    if (!cursor || !this.shown) return;
    const known = SIDES.map((side) => this.panels[side].heat?.value(cursor.row, cursor.col) ?? null);
    SIDES.forEach((side, at) => say(this.panels[side].value, known[at] === null ? "" : number(known[at])));
    const place = `[${this.shown.element(cursor.row, cursor.col).join(", ")}]`;
    SIDES.forEach((side) => say(this.panels[side].place, place));
    if (known.includes(null)) this.ask(cursor.row, cursor.col);
  }

  asking = 0;

  /** Far away from the elements themselves, the server knows them. @param {number} row @param {number} col */
  ask(row, col) {
    clearTimeout(this.asking);
    const { shown } = this;
    this.asking = setTimeout(async () => {
      const at = shown?.element(row, col) || [];
      if (!shown || this.signal.aborted || at.some((one) => typeof one !== "number")) return;
      const { elements } = await json(`${shown.base}/elements${query({ at: at.join(",") })}`, {
        signal: this.signal,
      }).catch(() => ({ elements: [] }));
      const { cursor } = this.view;
      if (!elements.length || cursor?.row !== row || cursor.col !== col || shown !== this.shown) return;
      say(this.panels.a.value, number(elements[0].a));
      say(this.panels.b.value, number(elements[0].b));
      if (shown.difference === "value") say(this.panels.d.value, number(elements[0].value));
    }, 90);
  }

  renew() {
    for (const side of SIDES) this.panels[side].heat?.renew();
  }

  /** @param {Side} side */
  label(side) {
    const { range, low, high, ramp } = this.panels[side];
    say(low, brief(range.low));
    say(high, brief(range.high));
    ramp.style.background = gradient(range.scale);
  }

  /** One of the three alone, or all. @param {string | null} side */
  focus(side) {
    const only = SIDES.find((one) => one === side) || "";
    if (this.row.dataset.only !== only) this.row.dataset.only = only;
  }

  /** @param {number} row @param {number} col */
  reveal(row, col) {
    this.view.show(row, col);
  }

  /** B shown in A's place, again and again: what moves is what differs. */
  blink(isOn = true) {
    if (isOn === Boolean(this.timer)) return;
    clearInterval(this.timer);
    this.timer = isOn ? setInterval(() => this.swap(), BLINK) : 0;
    if (this.isOther) this.swap();
  }

  swap() {
    const { a, b } = this.panels;
    if (!a.heat || !b.heat) return;
    const { source, range, held } = a.heat;
    [a.heat.source, a.heat.range, a.heat.held] = [b.heat.source, b.heat.range, b.heat.held];
    [b.heat.source, b.heat.range, b.heat.held] = [source, range, held];
    this.isOther = !this.isOther;
    for (const [one, name] of /** @type {[Panel, Side][]} */ ([
      [a, this.isOther ? "b" : "a"],
      [b, this.isOther ? "a" : "b"],
    ])) {
      say(one.title, TITLES[name]);
      one.title.className = `side-${name}`;
      one.heat?.ask();
    }
  }
}

/** @param {Side} side @returns {Panel} */
function panel(side) {
  const title = el("b", { class: side === "d" ? "" : `side-${side}` }, TITLES[side]);
  const value = el("span", { class: "value" });
  const place = el("span", { class: "place clip" });
  const canvas = el("canvas", {
    class: "heat-canvas",
    role: "img",
    label: side === "d" ? "Heat map of the difference" : `Heat map of ${TITLES[side]}`,
    attrs: { tabindex: 0 },
    title: "wheel to zoom, drag to move, double click for all",
  });
  const [low, ramp, high] = [el("span"), el("i"), el("span")];
  const element = el(
    "div",
    { class: "heat", data: { side } },
    el("div", { class: "heat-caption" }, title, place, value),
    canvas,
    el("div", { class: "ramp" }, low, ramp, high),
  );
  return {
    element,
    canvas,
    title,
    place,
    value,
    low,
    high,
    ramp,
    heat: null,
    range: { scale: "values", low: 0, high: 1 },
  };
}

/** The range of values that deserves colours: without the last thousandth, where that would swallow all others. @param {any} range @returns {number[]} */
function spread(range) {
  const [low, high, inner, outer] = [range.low, range.high, range.p01, range.p999].map(real);
  const isTame = !(outer > inner) || high - low < 3 * (outer - inner);
  return isTame ? [low, high] : [inner, outer];
}

/** From the lowest to the highest; a side without a finite number has no say. @param {number[][]} ranges */
function joined(ranges) {
  const told = ranges.filter(([low, high]) => high >= low);
  if (!told.length) return [0, 1];
  return [Math.min(...told.map((one) => one[0])), Math.max(...told.map((one) => one[1]))];
}

/** @param {any} range @param {string} difference @returns {Range} */
function apart(range, difference) {
  if (difference === "sign") return { scale: "signed", low: -1, high: 1 };
  const most = Math.max(Math.abs(real(range.low)), Math.abs(real(range.high))) || 1;
  const usual = Math.max(Math.abs(real(range.p01)), Math.abs(real(range.p999)));
  const high = usual > most / 20 ? Math.min(usual, most) : most;
  return difference === "value" ? { scale: "signed", low: -high, high } : { scale: "error", low: 0, high };
}
