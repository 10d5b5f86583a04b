// @ts-check
/** @file From one value to the next: other tensors, other steps, other ranks. */

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
    this.row = -1;
    /** @type {Moment[]} */
    this.steps = [];
    /** @type {Moment[]} */
    this.ranks = [];
    /** @type {Promise<Records> | null} */
    this.known = null;
    this.timer = 0;
    signal.addEventListener("abort", () => clearInterval(this.timer));
  }

  /** @param {number} row @param {Moment[]} steps @param {Moment[]} ranks */
  know(row, steps, ranks) {
    [this.row, this.steps, this.ranks] = [row, steps, ranks];
  }

  /** All of the run: fetched when somebody walks. */
  records() {
    this.known ||= Records.of(this.run, this.signal);
    return this.known;
  }

  /** @param {number} by */
  later(by) {
    const at = this.steps.findIndex((one) => one.row === this.row);
    const next = at < 0 ? null : this.steps[at + by];
    if (next) this.at({ s: next.step });
    return Boolean(next);
  }

  /** @param {number} by */
  across(by) {
    const at = this.ranks.findIndex((one) => one.row === this.row);
    const next = at < 0 ? null : this.ranks[at + by];
    if (next) this.at({ r: next.rank || null });
  }

  /** @param {number} by */
  async beside(by) {
    if (this.row < 0) return;
    const records = await this.records();
    const next = records.beside(this.row, by);
    if (next !== null) go(records.link(next));
  }

  play() {
    if (this.timer) return this.rest();
    const { steps } = this;
    if (steps.length && steps[steps.length - 1].row === this.row) this.at({ s: steps[0].step });
    this.timer = setInterval(() => this.later(1) || this.rest(), PLAYED);
    return undefined;
  }

  rest() {
    clearInterval(this.timer);
    this.timer = 0;
  }
}
