// @ts-check
/** @file What comes before and after a record, in the order in which the program made them. */

import { table } from "../api.js";
import { address } from "../url.js";

export class Records {
  /** @param {string} run @param {import("../api.js").Table} told */
  constructor(run, { facts, columns }) {
    this.run = run;
    this.texts = facts.texts;
    this.columns = columns;
  }

  /** @param {string} run @param {AbortSignal} signal */
  static async of(run, signal) {
    return new Records(run, await table(`/api/run/${run}/columns.bin`, { signal }));
  }

  /** @returns {string[]} */
  get names() {
    return this.texts.name;
  }

  /** The record beside one, at the same step of the same rank. @param {number} row @param {number} by */
  beside(row, by) {
    const { step, rank, order } = this.columns;
    /** @type {number[]} */
    const fitting = [];
    for (let at = 0; at < step.length; at++)
      if (step[at] === step[row] && rank[at] === rank[row]) fitting.push(at);
    fitting.sort((one, other) => order[one] - order[other] || one - other);
    return fitting[fitting.indexOf(row) + by] ?? null;
  }

  /** @param {number} row */
  link(row) {
    const { step, rank, call, name, kind } = this.columns;
    return address(`/run/${this.run}/t/${encodeURIComponent(this.texts.name[name[row]])}`, {
      s: step[row],
      r: rank[row] || null,
      c: call[row] || null,
      k: this.texts.kind[kind[row]],
    });
  }
}
