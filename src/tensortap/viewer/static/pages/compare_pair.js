// @ts-check
/** @file One pair, side by side: A, B and their difference under one cursor, and how they are spread. */

import { isAborted, json } from "../api.js";
import { button, choice, choose, el, fill } from "../dom.js";
import { dtype, middle, shape as shapeWords } from "../format.js";
import { copy, words } from "../messages.js";
import { Axes, element, slice, sliceSize, sliceWords } from "../instruments/axes.js";
import { chosen, set } from "../url.js";
import { pythonOfPair } from "./python_slice.js";
import { PairFigures } from "./compare_figures.js";
import { plainPair, singleNumbers, tone } from "./compare_plain.js";
import { Profiles } from "./compare_profiles.js";
import { pointed, seenPart } from "./tensor_picture.js";
import { Triptych } from "./triptych.js";

/** @typedef {import("./compare.js").Told} Told */
/** @typedef {"value" | "abs" | "rel" | "ulp" | "sign"} Difference */

/** @type {[Difference, string, string][]} */
const DIFFERENCES = [
  ["value", "B − A", "the difference itself"],
  ["abs", "|Δ|", "its size"],
  ["rel", "relative", "|Δ| against the larger of the two"],
  ["ulp", "ULP", "in units of the last place"],
  ["sign", "sign", "only which of them is larger"],
];

export class PairCard {
  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    /** @type {number | null} */
    this.shown = null;
    /** @type {any} */
    this.facts = null;
    /** @type {AbortController} */
    this.loading = new AbortController();
    this.title = el("h2", { class: "mono clip" });
    this.note = el("span", { class: "note clip grow" });
    this.differences = choice("Difference", DIFFERENCES, "value", (key) =>
      set({ v: key === "value" ? null : key }),
    );
    this.ranges = choice(
      "Colours",
      [
        ["shared", "one scale", "A and B in one colour scale"],
        ["own", "own", "each in its own"],
      ],
      "shared",
      (key) => set({ g: key === "shared" ? null : key }),
    );
    this.blinker = button("blink", () => this.blink(), {
      class: "small",
      title: "b",
      attrs: { "aria-pressed": "false" },
    });
    this.axesHost = el("div", { class: "axes" });
    this.axes = new Axes(this.axesHost, (part) => this.move(part));
    this.triptych = new Triptych(told.signal, (seen) =>
      set({ w: seen && seen.map((one) => Number(one.toFixed(1))).join(",") }),
    );
    this.profiles = new Profiles(
      (axis, place) => this.go(axis, place),
      (pair) => set(told.pairs.words(pair)),
      told.pairs,
      told.signal,
    );
    this.figures = new PairFigures(told, (index) => this.jump(index));
    this.body = el("div", { class: "pair-body" });
    this.content = [
      el("div", { class: "pair-tools" }, this.steps(), this.differences, this.ranges, this.blinker),
      this.axesHost,
      this.triptych.element,
      this.profiles.element,
      this.figures.element,
    ];
    this.element = el(
      "section",
      { class: "card pair-card", label: "The pair", attrs: { tabindex: -1 } },
      el(
        "div",
        { class: "card-head" },
        this.title,
        this.note,
        button("Copy Python", () => copy(this.python(), "The Python of this pair"), {
          class: "small",
          title: ".",
        }),
      ),
      this.body,
    );
  }

  steps() {
    const { pairs } = this.told;
    const to = (/** @type {(at: number) => number | null} */ next) => () => {
      const at = this.shown === null ? null : next(this.shown);
      if (at !== null) set(pairs.words(at));
    };
    const small = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
      el("button", { type: "button", class: "choice", label, title: label, on: { click: act } }, text);
    return el(
      "div",
      { class: "choices", role: "group", label: "Go" },
      small(
        "▲",
        "Tensor before (k)",
        to((at) => pairs.beside(at, -1)),
      ),
      small(
        "▼",
        "Next tensor (j)",
        to((at) => pairs.beside(at, 1)),
      ),
      small(
        "◀",
        "Step before (h)",
        to((at) => pairs.later(at, -1)),
      ),
      small(
        "▶",
        "Next step (l)",
        to((at) => pairs.later(at, 1)),
      ),
    );
  }

  /** @param {number | null} pair */
  async update(pair) {
    choose(this.differences, chosen("v") || "value");
    choose(this.ranges, chosen("g") || "shared");
    this.triptych.focus(chosen("p"));
    this.blinker.setAttribute("aria-pressed", String(Boolean(chosen("blink"))));
    this.triptych.blink(Boolean(chosen("blink")));
    if (pair === null) return this.empty("There is no pair to look at.");
    if (pair === this.shown) return this.draw();
    this.shown = pair;
    this.loading.abort();
    this.loading = new AbortController();
    this.head(pair);
    try {
      const facts = await json(`/api/compare/${this.told.c}/pair/${pair}`, { signal: this.loading.signal });
      if (this.shown === pair) this.arrive(facts);
    } catch (error) {
      if (!isAborted(error)) this.empty(words(error));
    }
    return undefined;
  }

  /** @param {number} pair */
  head(pair) {
    const { pairs } = this.told;
    const name = pairs.text("name", pair);
    const other = pairs.text("b_name", pair);
    fill(this.title, middle(name, 46));
    this.title.title = other === name ? name : `${name}\nB calls it ${other}`;
    const shape = pairs.text("shape", pair);
    const type = dtype(pairs.text("dtype", pair));
    const told = [
      `step ${pairs.number("step", pair)}`,
      shape ? shapeWords(shape) : type && "number",
      type,
      `rank ${pairs.number("rank", pair)}`,
      pairs.text("kind", pair),
    ];
    fill(
      this.note,
      el("b", { class: tone(pairs.text("verdict", pair)) }, pairs.text("verdict", pair)),
      ` · ${told.filter(Boolean).join(" · ")}`,
    );
  }

  /** @param {any} facts */
  arrive(facts) {
    this.facts = facts;
    if (!facts.a?.is_array || !facts.b?.is_array || facts.metrics?.reason)
      return fill(this.body, plainPair(facts));
    if (facts.a.shape.every((/** @type {number} */ length) => length === 1)) return this.single(facts);
    if (this.body.firstChild !== this.content[0]) fill(this.body, this.content);
    this.draw();
    return this.figures.show(this.base(), facts);
  }

  base() {
    return `/api/compare/${this.told.c}/pair/${this.shown}`;
  }

  /** The part of the array that is seen: as the address says, else where the difference is largest. */
  part() {
    const { shape, view } = this.facts.a;
    const worst = this.facts.metrics?.max_at;
    const given = chosen("i");
    const index = given || (worst && worst.length === shape.length ? worst.join(",") : view?.index);
    return slice(shape, chosen("x"), index);
  }

  draw() {
    if (this.body.firstChild !== this.content[0] || this.facts?.pair !== this.shown) return;
    const { shape } = this.facts.a;
    const part = this.part();
    this.figures.choose();
    this.axes.show(shape, part);
    this.axesHost.hidden = shape.length < 3;
    this.profiles.show(this.base(), this.shown ?? 0, shape, part);
    const look = sliceWords(shape, part);
    this.triptych.show({
      base: this.base(),
      look,
      size: sliceSize(shape, part),
      difference: /** @type {Difference} */ (chosen("v") || "value"),
      isShared: chosen("g") !== "own",
      pointed: pointed(chosen("at")) || this.worst(part),
      part: seenPart(chosen("w")),
      element: (row, col) => element(part, row, col),
    });
  }

  /** Where on the slice the largest difference is, if it is on it. @param {import("../instruments/axes.js").Slice} part */
  worst(part) {
    /** @type {number[] | undefined} */
    const at = this.facts.metrics?.max_at;
    if (!at?.length || part.cols < 0) return null;
    const isSeen = at.every(
      (place, axis) => axis === part.rows || axis === part.cols || part.index[axis] === place,
    );
    return isSeen ? { row: part.rows < 0 ? 0 : at[part.rows], col: at[part.cols] } : null;
  }

  /** @param {import("../instruments/axes.js").Slice} part */
  move(part) {
    const { axes, index } = sliceWords(this.facts.a.shape, part);
    const last = this.facts.a.shape.length;
    const isDefault = axes === `${last - 2},${last - 1}` || last < 2;
    // The places alone, so that the axes in sight can be swapped without losing them.
    set({ i: part.index.join(",") || index, x: isDefault ? null : axes, at: null });
  }

  /** To a place on one axis: along it where it is seen, else another slice. @param {number} axis @param {number} place */
  go(axis, place) {
    const part = this.part();
    const { cursor } = this.triptych.view;
    if (axis === part.rows) return this.triptych.view.point({ row: place, col: cursor?.col ?? 0 });
    if (axis === part.cols) return this.triptych.view.point({ row: cursor?.row ?? 0, col: place });
    return this.move({ ...part, index: part.index.map((word, at) => (at === axis ? place : word)) });
  }

  /** Show one element of the whole array. @param {number[]} index */
  jump(index) {
    set({ i: index.join(",") });
    const part = this.part();
    if (part.cols < 0) return;
    const [row, col] = [part.rows < 0 ? 0 : index[part.rows], index[part.cols]];
    set({ at: `${row},${col}` });
    this.triptych.reveal(row, col);
  }

  /** @param {string} side */
  focus(side) {
    set({ p: chosen("p") === side ? null : side });
  }

  blink() {
    set({ blink: chosen("blink") ? null : 1 });
  }

  python() {
    const isSeen = this.body.firstChild === this.content[0] && this.facts?.pair === this.shown;
    return this.facts ? pythonOfPair(this.facts, isSeen ? this.part() : null) : "";
  }

  /** One number on each side is no picture. @param {any} facts */
  single(facts) {
    fill(
      this.body,
      el("div", { class: "pair-tools" }, this.steps()),
      singleNumbers(facts),
      this.profiles.element,
      el("pre", { class: "plain soft" }, facts.story || ""),
    );
    this.profiles.show(this.base(), facts.pair, [], { rows: -1, cols: -1, index: [] });
  }

  /** @param {string} text */
  empty(text) {
    this.facts = null;
    fill(this.body, el("div", { class: "vt-none pair-none", role: "status" }, text));
  }
}

