// @ts-check
/** @file The figures of one value: statistics, how it is spread, its outermost elements, where it was made. */

import { isAborted, json, query, real } from "../api.js";
import { button, choice, choose, el, fill, say } from "../dom.js";
import { brief, count, moment, number, percent, size } from "../format.js";
import { words } from "../messages.js";
import { Histogram } from "../instruments/histogram.js";
import { ink, onTheme } from "../theme.js";
import { chosen, set } from "../url.js";
import { LARGE } from "./tensor_courses.js";

const SHOWN = 12;
const BINS = 72;
/** @type {[string, string, string?][]} */
const SCALES = [
  ["linear", "linear", "bins of one width"],
  ["symlog", "symlog", "bins of one width by powers, on both sides of zero"],
  ["log", "log |x|", "sizes by powers"],
];
/** @type {[string, string, string?][]} */
const ORDERS = [
  ["abs", "|x|", "largest in size; NaN and Inf first"],
  ["max", "max", "largest"],
  ["min", "min", "smallest"],
  ["odd", "NaN, Inf", "what is not finite"],
];

export class TensorFigures {
  /** @param {AbortSignal} signal @param {(index: number[]) => void} jump */
  constructor(signal, jump) {
    this.signal = signal;
    this.jump = jump;
    this.base = "";
    this.asked = { spread: "", top: "" };
    /** @type {any} */
    this.found = null;
    this.statistics = el("dl", { class: "numbers" });
    this.where = el("div", { class: "where" });
    this.canvas = el("canvas", { class: "hist-canvas", role: "img", label: "Histogram" });
    this.histogram = new Histogram(this.canvas, signal);
    this.spreadNote = el("span", { class: "note clip grow" });
    this.scales = choice("Bins", SCALES, "linear", (key) => set({ h: key === "linear" ? null : key }));
    this.heights = choice(
      "Height",
      [
        ["log", "log", "heights are logarithms of counts"],
        ["count", "count", "heights are counts"],
      ],
      "log",
      (key) => set({ n: key === "log" ? null : key }),
    );
    this.extents = choice(
      "Of",
      [
        ["all", "all", "of the whole value"],
        ["slice", "slice", "of what the heat map shows"],
      ],
      "all",
      (key) => set({ u: key === "all" ? null : key }),
    );
    this.orders = choice("Order", ORDERS, "abs", (key) => set({ o: key === "abs" ? null : key }));
    this.top = el("ol", { class: "worst top-list" });
    this.topHost = el("div", { class: "card-body" });
    this.topCard = this.outermostCard();
    this.spreadCard = this.histogramCard();
    this.element = el("div", { class: "tensor-side" }, this.cards());
    onTheme(() => this.drawSpread(), signal);
  }

  cards() {
    const numbers = el(
      "section",
      { class: "card card-body", label: "Statistics" },
      this.statistics,
      this.where,
    );
    return [numbers, this.spreadCard, this.topCard];
  }

  histogramCard() {
    const tools = el("div", { class: "pair-tools" }, this.scales, this.heights, this.extents);
    return el(
      "section",
      { class: "card", label: "Histogram" },
      el("div", { class: "card-head" }, el("h2", null, "Histogram"), this.spreadNote),
      el("div", { class: "card-body spread-body" }, tools, this.canvas),
    );
  }

  outermostCard() {
    const head = el("div", { class: "card-head" }, el("h2", { class: "grow" }, "Elements"), this.orders);
    return el("section", { class: "card top-card", label: "Outermost elements" }, head, this.topHost);
  }

  /** @param {string} base @param {any} facts @param {{axes: string, index: string}} look */
  show(base, facts, look) {
    if (base !== this.base) {
      this.base = base;
      fill(this.statistics, statistics(facts));
      fill(this.where, where(facts));
    }
    choose(this.scales, chosen("h") || "linear");
    choose(this.heights, chosen("n") || "log");
    choose(this.extents, chosen("u") || "all");
    choose(this.orders, chosen("o") || "abs");
    const part = chosen("u") === "slice" ? look : {};
    this.spread(`${base}/hist${query({ bins: BINS, scale: chosen("h") || "linear", ...part })}`);
    const top = `${base}/top${query({ k: SHOWN, by: chosen("o") || "abs" })}`;
    if (facts.nbytes < LARGE || top === this.asked.top) this.outermost(top);
    else this.offer(facts, top);
    this.topCard.hidden = this.spreadCard.hidden = facts.shape.length === 0;
  }

  /** What takes the whole of a large value waits until it is wanted. @param {any} facts @param {string} address */
  offer(facts, address) {
    const read = button(`Read ${size(facts.nbytes)} to find them`, () => this.outermost(address), {
      class: "small",
    });
    fill(this.topHost, read);
  }

  /** @param {string} address */
  async spread(address) {
    if (address === this.asked.spread) return this.drawSpread();
    this.asked.spread = address;
    try {
      const found = await json(address, { signal: this.signal });
      if (address !== this.asked.spread) return undefined;
      this.found = found;
      say(this.spreadNote, spreadWords(found));
      this.drawSpread();
    } catch (error) {
      if (!isAborted(error)) say(this.spreadNote, words(error));
    }
    return undefined;
  }

  drawSpread() {
    if (!this.found) return;
    const edges = this.found.edges.map(real);
    const isEven = (chosen("h") || "linear") === "linear";
    const shown = isEven ? edges : edges.map((/** @type {number} */ _, /** @type {number} */ at) => at);
    this.histogram.show(
      [{ edges: shown, counts: this.found.counts, colour: ink("a"), label: "elements", isFilled: true }],
      { isLog: chosen("n") !== "count", said: isEven ? brief : (at) => brief(edges[Math.round(at)]) },
    );
  }

  /** @param {string} address */
  async outermost(address) {
    if (address === this.asked.top) return;
    this.asked.top = address;
    fill(this.topHost, el("p", { class: "quiet" }, "looking…"));
    try {
      const { elements } = await json(address, { signal: this.signal });
      if (address !== this.asked.top) return;
      fill(this.topHost, this.top);
      fill(
        this.top,
        elements.map((/** @type {any} */ one) => this.entry(one)),
      );
      if (!elements.length) fill(this.top, el("li", { class: "quiet" }, "there is none"));
    } catch (error) {
      if (!isAborted(error)) fill(this.topHost, el("p", { class: "quiet" }, words(error)));
    }
  }

  /** @param {any} one */
  entry(one) {
    const isOdd = !Number.isFinite(real(one.value));
    return el(
      "li",
      null,
      el(
        "button",
        {
          type: "button",
          title: `show it · bits ${one.bits || ""}`,
          on: { click: () => this.jump(one.index) },
        },
        el("span", { class: "soft" }, `[${one.index.join(",")}]`),
        el("span", { class: isOdd ? "bad" : "" }, isOdd ? number(one.value) : one.text),
      ),
    );
  }
}

// Those with a place of their own; one that the server adds follows under its name.
const PLACED = new Set(["mean", "std", "norm", "min", "max", "absmax", "nan", "inf", "count"]);

/** @param {any} facts */
function statistics(facts) {
  const known = facts.statistics;
  const fact = (/** @type {string} */ name, /** @type {string} */ value, tone = "") =>
    el("div", null, el("dt", null, name), el("dd", { class: tone }, value));
  if (!known)
    return [
      fact("size", size(facts.nbytes)),
      fact(
        "elements",
        count(facts.shape.reduce((/** @type {number} */ one, /** @type {number} */ two) => one * two, 1)),
      ),
    ];
  const odd = (/** @type {"nan" | "inf"} */ key) =>
    fact(key === "nan" ? "NaN" : "Inf", known[key] ? count(known[key]) : "0", known[key] ? "bad" : "quiet");
  return [
    fact("mean", number(known.mean)),
    fact("std", number(known.std)),
    fact("L2 norm", number(known.norm)),
    fact("min", number(known.min)),
    fact("max", number(known.max)),
    fact("max |x|", number(known.absmax)),
    odd("nan"),
    odd("inf"),
    fact("elements", count(known.count)),
    ...Object.keys(known)
      .filter((name) => !PLACED.has(name))
      .map((name) => fact(name, number(known[name]))),
  ];
}

/** @param {any} facts */
function where(facts) {
  const { site, placement } = facts;
  const lines = /** @type {[string, any][]} */ ([
    [
      // A module's forward gives its output, and only takes its inputs and gradients.
      site?.last && facts.kind !== "output" ? "module at" : "made at",
      site &&
        el(
          "span",
          { title: site.file },
          `${short(site.file)}:${site.line}${site.last > site.line ? `-${site.last}` : ""}`,
          el("span", { class: "quiet" }, ` ${site.function}`),
        ),
    ],
    ["called by", site?.callers?.length && site.callers.slice(0, 3).map(short).join(" ← ")],
    ["device", facts.device],
    ["part of", placement && `${placement.parts.join(", ")} of [${placement.shape.join(", ")}]`],
    ["time", facts.time && moment(facts.time)],
    ["file", facts.file],
  ]).filter(([, value]) => value);
  return (
    lines.length > 0 &&
    el(
      "dl",
      { class: "facts" },
      lines.map(([name, value]) => [el("dt", null, name), el("dd", null, value)]),
    )
  );
}

/** @param {string} path */
function short(path) {
  return path.split("/").slice(-2).join("/");
}

/** @param {any} found */
function spreadWords(found) {
  const parts = [];
  if (found.zero) parts.push(`${percent(found.zero / found.looked)} zero`);
  if (found.nan) parts.push(`${count(found.nan)} NaN`);
  if (found.pos_inf + found.neg_inf) parts.push(`${count(found.pos_inf + found.neg_inf)} Inf`);
  if (!found.exact) parts.push(`from ${count(found.looked)} of them`);
  return parts.join(" · ");
}
