// @ts-check
/** @file From one value to the next: other tensors, other steps, other ranks. */

import { el } from "../dom.js";
import { go } from "../url.js";
import { Records } from "./records.js";

/** @typedef {import("./tensor_series.js").Moment} Moment */

const PLAYED = 350; // milliseconds from one step to the next

export class Walk {
  /** @param {string} run @param {(values: Record<string, number | null>) => void} at @param {AbortSignal} signal */
  constructor(run, at, signal) {
    this.run = run;
    this.at = at;
    this.signal = signal;
    /** @type {{row: number, step: number, rank: number} | null} */
    this.here = null;
    /** @type {Moment[]} */
    this.steps = [];
    /** @type {Moment[]} */
    this.ranks = [];
    /** @type {Promise<Records> | null} */
    this.known = null;
    this.timer = 0;
    signal.addEventListener("abort", () => clearInterval(this.timer));
  }

  /** @param {Moment[]} steps @param {Moment[]} ranks */
  know(steps, ranks) {
    [this.steps, this.ranks] = [steps, ranks];
  }

  /** All of the run: fetched when somebody walks. */
  records() {
    this.known ||= Records.of(this.run, this.signal);
    return this.known;
  }

  /** @param {number} by */
  later(by) {
    const at = this.steps.findIndex((one) => one.step === this.here?.step);
    const next = at < 0 ? null : this.steps[at + by];
    if (next) this.at({ s: next.step });
    return Boolean(next);
  }

  /** @param {number} by */
  across(by) {
    const at = this.ranks.findIndex((one) => one.rank === this.here?.rank);
    const next = at < 0 ? null : this.ranks[at + by];
    if (next) this.at({ r: next.rank || null });
  }

  /** @param {number} by */
  async beside(by) {
    const { here } = this;
    if (!here) return;
    const records = await this.records();
    const next = records.beside(here.row, by);
    if (next !== null) go(records.link(next));
  }

  play() {
    if (this.timer) return this.rest();
    const { steps } = this;
    if (steps.length && steps[steps.length - 1].step === this.here?.step) this.at({ s: steps[0].step });
    this.timer = setInterval(() => this.later(1) || this.rest(), PLAYED);
    return undefined;
  }

  rest() {
    clearInterval(this.timer);
    this.timer = 0;
  }

  /** The address of another moment of the same view. @param {Record<string, number | null>} values */
  link(values) {
    const search = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries({ s: this.here?.step ?? null, ...values })) {
      if (value === null) search.delete(name);
      else search.set(name, String(value));
    }
    return `${location.pathname}?${search}`;
  }

  /** Buttons that go where the keys go. */
  arrows() {
    const small = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
      el("button", { type: "button", class: "choice", label, title: label, on: { click: act } }, text);
    return el(
      "div",
      { class: "choices", role: "group", label: "Go" },
      small("▲", "Tensor before (k)", () => this.beside(-1)),
      small("▼", "Next tensor (j)", () => this.beside(1)),
      small("◀", "Step before (h)", () => this.later(-1)),
      small("▶", "Next step (l)", () => this.later(1)),
    );
  }

  /** @returns {import("../keys.js").Binding[]} */
  keys() {
    const way = (/** @type {boolean} */ isForward) => (isForward ? 1 : -1);
    return [
      { keys: ["j", "k"], help: "next tensor, tensor before", act: (key) => this.beside(way(key === "j")) },
      { keys: ["l", "h"], help: "next step, step before", act: (key) => this.later(way(key === "l")) },
      { keys: ["]", "["], help: "next rank, rank before", act: (key) => this.across(way(key === "]")) },
      { keys: [" "], help: "play through the steps", act: () => this.play() },
    ];
  }

  /** Every name of the run, for the palette. */
  async everywhere() {
    const { names } = await this.records();
    return names.map((name) => ({
      text: name,
      hint: "tensor",
      act: () => go(`/run/${this.run}/t/${encodeURIComponent(name)}`),
    }));
  }
}
