// @ts-check
/** @file The divergence map with its choices. */

import { NONE, isAborted, query, real, table } from "../api.js";
import { gradient } from "../colors.js";
import { button, choice, choose, el, say } from "../dom.js";
import { brief, number, plural } from "../format.js";
import { tell, words } from "../messages.js";
import { DivergenceMap } from "../instruments/divergence_map.js";
import { onTheme } from "../theme.js";
import { chosen, chosenNumber, set } from "../url.js";

/** @typedef {import("./compare.js").Told} Told */
/** @typedef {import("../instruments/divergence_map.js").Field} Field */
/** @typedef {import("../instruments/divergence_map.js").Cell} Cell */
/** @typedef {import("../instruments/divergence_map.js").Part} Part */

/** @type {[string, string, string][]} */
export const ERRORS = [
  ["relative_l2", "rel L2", "|a − b| against the whole"],
  ["max_abs", "max |Δ|", "the largest difference of any element"],
  ["ulp", "ULP", "units in the last place, the most of any element"],
  ["cosine", "1 − cos", "how far the directions are apart"],
  ["mismatch", "mismatch", "share of elements that differ"],
  ["ratio", "× noise", "how many times its noise"],
  ["contribution", "added", "what this place adds to the error that came in"],
];

/** Verdicts that do not speak of a difference. */
const CALM = ["identical", "within noise", "unreadable", "unaligned"];

export class MapCard {
  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    /** @type {Field | null} */
    this.field = null;
    /** @type {Uint32Array} */
    this.pairs = new Uint32Array(0);
    /** @type {Uint8Array} */
    this.verdicts = new Uint8Array(0);
    this.loaded = "";
    this.note = el("span", { class: "note clip" });
    this.low = el("span");
    this.high = el("span");
    this.ramp = el("i");
    this.errors = choice("Kind of error", ERRORS, "relative_l2", (key) =>
      set({ e: key === "relative_l2" ? null : key }, { push: true }),
    );
    this.reset = button("Show all", () => set({ z: null }, { push: true }), { class: "small", hidden: true });
    this.canvas = el("canvas", {
      class: "map-canvas",
      role: "img",
      label: "Divergence map",
      attrs: { tabindex: 0 },
    });
    this.element = el(
      "section",
      { class: "card map-card", label: "Divergence map" },
      el(
        "div",
        { class: "card-head" },
        el("h2", null, "Divergence map"),
        this.note,
        el("span", { class: "spacer" }),
        this.reset,
        el("div", { class: "ramp map-ramp" }, this.low, this.ramp, this.high),
      ),
      el(
        "div",
        { class: "map-tools" },
        this.errors,
        el("span", { class: "note quiet map-hint" }, "drag to restrict, click to inspect"),
      ),
      this.canvas,
    );
    this.map = new DivergenceMap(this.canvas, told.signal, {
      words: (cell) => this.words(cell),
      onPick: (cell) => this.pick(cell),
      onBrush: (part) => this.restrict(part),
    });
    this.canvas.addEventListener("keydown", (event) => this.steer(event), { signal: told.signal });
    onTheme(() => this.colour(), told.signal);
    this.colour();
  }

  /** The arrow keys go from cell to cell. @param {KeyboardEvent} event */
  steer(event) {
    const { pairs } = this.told;
    const at = this.selected;
    if (at === null || !event.key.startsWith("Arrow")) return;
    const way = event.key === "ArrowDown" || event.key === "ArrowRight" ? 1 : -1;
    const isUpright = event.key === "ArrowDown" || event.key === "ArrowUp";
    const next = isUpright ? pairs.beside(at, way) : pairs.later(at, way);
    event.preventDefault();
    if (next !== null) set(pairs.words(next));
  }

  /** @type {number | null} */
  selected = null;

  colour() {
    this.ramp.style.background = gradient("error");
  }

  /** @param {number | null} selected */
  async update(selected) {
    const error = chosen("e") || "relative_l2";
    const rank = selected === null ? chosenNumber("r", 0) : this.told.pairs.number("rank", selected);
    choose(this.errors, error);
    this.selected = selected;
    try {
      if (this.loaded !== `${error} ${rank}`) await this.load(error, rank);
    } catch (problem) {
      if (!isAborted(problem)) tell(words(problem), { isBad: true });
      return;
    }
    if (!this.field) return;
    const part = parsed(chosen("z"), this.field);
    this.reset.hidden = !part;
    this.map.show(this.field, part);
    this.map.select(this.cell(selected));
  }

  /** @param {string} error @param {number} rank */
  async load(error, rank) {
    this.loaded = `${error} ${rank}`;
    const { facts, columns } = await table(`/api/compare/${this.told.c}/map.bin${query({ error, rank })}`, {
      signal: this.told.signal,
    });
    if (this.loaded !== `${error} ${rank}`) return;
    this.pairs = /** @type {Uint32Array} */ (columns.pair);
    this.verdicts = /** @type {Uint8Array} */ (columns.verdict);
    const low = real(facts.low);
    const high = real(facts.high);
    const isAny = low > 0 && high > 0;
    const sizes = this.judged(/** @type {Float32Array} */ (columns.error));
    const first = facts.first ? { row: facts.first.tensor, col: facts.first.step } : null;
    this.field = {
      names: facts.names,
      kinds: facts.name_kinds,
      steps: facts.steps,
      error: sizes,
      low: isAny ? Math.max(low, high * 1e-9) : 1,
      high: isAny ? high : 10,
      first,
      isAny: isAny || sizes.includes(Infinity),
    };
    say(
      this.note,
      `${plural(facts.names.length, "tensor")} in execution order × ${plural(facts.steps.length, "step")}`,
    );
    say(this.low, "equal");
    say(this.high, isAny ? brief(high) : "");
    this.canvas.setAttribute(
      "aria-label",
      `Divergence map: ${this.note.textContent}; ${first ? `the first difference is at ${facts.names[first.row]}, step ${facts.steps[first.col]}` : "no difference beyond noise"}`,
    );
  }

  /** Shapes or texts that differ have no size of difference, and are as far apart as can be. @param {Float32Array} error */
  judged(error) {
    const isCalm = this.told.verdicts.map((one) => CALM.includes(one));
    return error.map((one, at) =>
      Number.isNaN(one) && this.pairs[at] !== NONE && !isCalm[this.verdicts[at]] ? Infinity : one,
    );
  }

  /** @param {Cell} cell */
  words({ row, col }) {
    const field = /** @type {Field} */ (this.field);
    const at = row * field.steps.length + col;
    const kind = ERRORS.find(([key]) => key === (chosen("e") || "relative_l2")) || ERRORS[0];
    const where = `${field.names[row]} · step ${field.steps[col]}`;
    if (this.pairs[at] === NONE) return `${where}\nno pair`;
    const verdict = this.told.verdicts[this.verdicts[at]] || "";
    const error = field.error[at];
    return `${where}\n${kind[1]}  ${error === 0 ? "0, identical" : Number.isFinite(error) ? number(error) : "not measurable"}\n${field.kinds[row]} · ${verdict}`;
  }

  /** @param {Cell} cell */
  pick({ row, col }) {
    const pair = this.pairs[row * /** @type {Field} */ (this.field).steps.length + col];
    if (pair !== NONE) set({ ...this.told.pairs.words(pair), i: null, x: null, at: null }, { push: true });
  }

  /** @param {Part | null} part */
  restrict(part) {
    set({ z: part ? `${part.top}-${part.bottom},${part.left}-${part.right}` : null }, { push: true });
  }

  /** @param {number | null} pair @returns {Cell | null} */
  cell(pair) {
    const at = pair === null ? -1 : this.pairs.indexOf(pair);
    const steps = this.field?.steps.length || 1;
    return at < 0 ? null : { row: Math.floor(at / steps), col: at % steps };
  }
}

/** @param {string | null} text @param {Field} field @returns {Part | null} */
function parsed(text, field) {
  const found = (text || "").match(/^(\d+)-(\d+),(\d+)-(\d+)$/);
  if (!found) return null;
  const [top, bottom, left, right] = found.slice(1).map(Number);
  const isGood = top < bottom && left < right && bottom <= field.names.length && right <= field.steps.length;
  return isGood ? { top, bottom, left, right } : null;
}
