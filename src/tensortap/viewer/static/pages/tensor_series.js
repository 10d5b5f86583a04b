// @ts-check
/** @file The same value at other steps and on other ranks. */

import { table } from "../api.js";
import { el, fill } from "../dom.js";
import { number, plural } from "../format.js";
import { Heatmap } from "../instruments/heatmap.js";
import { chart } from "../instruments/chart.js";
import { tiles } from "../instruments/tiles.js";
import { View } from "../instruments/view.js";
import { words } from "../messages.js";

/** @typedef {{row: number, step: number, rank: number, isKnown: boolean, mean: number, std: number, min: number, max: number, absmax: number, odd: number}} Moment */

const MOST_RANKS = 16;

/**
 * @param {string} base
 * @param {"steps" | "ranks"} by
 * @param {AbortSignal} signal
 * @returns {Promise<Moment[]>}
 */
export async function series(base, by, signal) {
  const { columns } = await table(`${base}/series.bin?by=${by}&compute=1`, { signal });
  const { row, step, rank, known, mean, std, min, max, absmax, nan, inf } = columns;
  return Array.from(row, (one, at) => ({
    row: one,
    step: step[at],
    rank: rank[at],
    isKnown: known[at] === 1,
    mean: mean[at],
    std: std[at],
    min: min[at],
    max: max[at],
    absmax: absmax[at],
    odd: known[at] === 1 ? nan[at] + inf[at] : 0,
  }));
}

/** The chart is drawn when somebody scrolls to it: it is the only thing here that needs the chart library. */
export class History {
  /** @param {(step: number) => void} onStep @param {AbortSignal} signal */
  constructor(onStep, signal) {
    this.onStep = onStep;
    this.signal = signal;
    this.key = "";
    /** @type {Moment[]} */
    this.moments = [];
    this.isSeen = false;
    this.ended = new AbortController();
    this.host = el("div", { class: "history-host" });
    this.note = el("span", { class: "note" });
    this.element = el(
      "section",
      { class: "card", label: "History over steps", hidden: true },
      el("div", { class: "card-head" }, el("h2", null, "History over steps"), this.note),
      this.host,
    );
    const watch = new IntersectionObserver(([entry]) => {
      if (entry.isIntersecting && !this.isSeen) this.see();
    });
    watch.observe(this.host);
    signal.addEventListener("abort", () => {
      watch.disconnect();
      this.ended.abort();
    });
  }

  see() {
    this.isSeen = true;
    this.draw();
  }

  /** @param {string} key what is followed @param {Moment[]} moments */
  show(key, moments) {
    if (key === this.key && moments.length === this.moments.length) return;
    this.key = key;
    this.moments = moments;
    this.element.hidden = moments.length < 2;
    fill(
      this.note,
      `${plural(moments.length, "step")} · mean, from the smallest to the largest; a click goes to a step`,
    );
    if (this.isSeen) this.draw();
  }

  async draw() {
    if (this.moments.length < 2) return;
    this.ended.abort();
    this.ended = new AbortController();
    const known = this.moments.filter((one) => one.isKnown);
    const x = known.map((one) => one.step);
    const line = (
      /** @type {"min" | "max" | "mean" | "std"} */ key,
      /** @type {string} */ colour,
      more = {},
    ) => ({
      x,
      y: known.map((one) => (Number.isFinite(one[key]) ? one[key] : null)),
      name: key,
      colour,
      ...more,
    });
    const isOne = known.every((one) => one.min === one.max);
    const reach = { opacity: 0.5 };
    const traces = isOne
      ? [line("mean", "a", { name: "value" })]
      : [
          line("min", "faint", reach),
          line("max", "faint", { ...reach, fill: "tonexty" }),
          line("std", "b", { dash: "dot" }),
          line("mean", "a"),
        ];
    await chart(this.host, traces, { x: "step", height: 240, onPick: this.onStep }, this.ended.signal).catch(
      (error) => fill(this.host, el("p", { class: "card-body quiet" }, words(error))),
    );
  }
}

/** The same slice on every rank, under one cursor. */
export class Ranks {
  /** @param {(rank: number) => string} link @param {AbortSignal} signal */
  constructor(link, signal) {
    this.link = link;
    this.drawn = "";
    this.ended = new AbortController();
    this.host = el("div", { class: "ranks" });
    this.note = el("span", { class: "note" });
    this.element = el(
      "section",
      { class: "card", label: "Ranks side by side", hidden: true },
      el("div", { class: "card-head" }, el("h2", null, "Ranks side by side"), this.note),
      this.host,
    );
    signal.addEventListener("abort", () => this.ended.abort());
  }

  /**
   * @param {string} run the address of the run
   * @param {Moment[]} moments
   * @param {{look: {axes: string, index: string}, size: [number, number], range: import("../colors.js").Range, rank: number}} what
   */
  show(run, moments, { look, size, range, rank }) {
    this.element.hidden = moments.length < 2;
    const drawn = JSON.stringify([run, moments, look, size, range, rank]);
    if (drawn === this.drawn || moments.length < 2) return;
    this.drawn = drawn;
    this.ended.abort();
    this.ended = new AbortController();
    const view = new View(...size);
    const shown = moments.slice(0, MOST_RANKS);
    fill(
      this.note,
      plural(moments.length, "rank"),
      moments.length > MOST_RANKS && `, the first ${MOST_RANKS} are shown`,
    );
    fill(
      this.host,
      shown.map((one) => this.one(run, one, view, look, size, range, one.rank === rank)),
    );
  }

  /**
   * @param {string} run
   * @param {Moment} moment
   * @param {View} view
   * @param {{axes: string, index: string}} look
   * @param {[number, number]} size
   * @param {import("../colors.js").Range} range
   * @param {boolean} isShown
   */
  one(run, moment, view, look, size, range, isShown) {
    const { signal } = this.ended;
    const canvas = el("canvas", {
      class: "heat-canvas",
      role: "img",
      label: `Rank ${moment.rank}`,
      attrs: { tabindex: 0 },
    });
    const heat = new Heatmap(
      canvas,
      view,
      tiles(`${run}/row/${moment.row}`, look, size, signal),
      range,
      signal,
    );
    const value = el("span", { class: "value" });
    const follow = () => {
      const at = view.cursor;
      const known = at && heat.value(at.row, at.col);
      value.textContent = typeof known === "number" ? number(known) : `mean ${number(moment.mean)}`;
    };
    view.followers.add(follow);
    follow();
    return el(
      "div",
      { class: `heat ${isShown ? "is-shown" : ""}` },
      el(
        "div",
        { class: "heat-caption" },
        el("a", { href: this.link(moment.rank) }, `rank ${moment.rank}`),
        moment.odd > 0 && el("span", { class: "bad" }, `${moment.odd} NaN or Inf`),
        value,
      ),
      canvas,
    );
  }
}
