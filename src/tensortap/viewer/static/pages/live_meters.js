// @ts-check
/** @file How a job and the link to it are doing: rates, cost, lag, what was lost, and the taps one by one. */

import { button, el, say } from "../dom.js";
import { count, number, percent, size } from "../format.js";
import { Spark } from "../instruments/spark.js";
import { named } from "./live_catalog.js";

/** @typedef {{element: HTMLElement, value: HTMLElement, spark: Spark | null}} Meter */
/** @typedef {{element: HTMLElement, state: HTMLElement, last: HTMLElement}} TapLine */

const KEPT = 60;

export class Meters {
  /** @param {(tap: number) => void} untap @param {boolean} isAllowed @param {AbortSignal} signal */
  constructor(untap, isAllowed, signal) {
    this.untap = untap;
    this.isAllowed = isAllowed;
    /** @type {any} */
    this.before = null;
    /** @type {number[]} */
    this.ages = [];
    const meter = (/** @type {string} */ title, /** @type {string} */ hint, isDrawn = true) =>
      made(title, hint, isDrawn, signal);
    this.step = meter("step", "the step of the job", false);
    this.rate = meter("steps / s", "how fast the job goes");
    this.overhead = meter("overhead", "what requests and copies take, of the time of a step");
    this.records = meter("records / s", "how many values come");
    this.bytes = meter("bytes / s", "how much comes");
    this.lag = meter(
      "job → screen",
      "from the moment a value was made to the moment it is drawn here; the clock of this machine",
    );
    this.lost = meter(
      "not shown",
      "left out in the job or on the way, because newer ones came; the job never waits",
      false,
    );
    this.none = el("li", { class: "quiet" }, "none");
    this.taps = el("ul", { class: "live-taps" }, this.none);
    const all = [this.step, this.rate, this.overhead, this.records, this.bytes, this.lag, this.lost];
    this.element = el(
      "section",
      { class: "card live-meters", label: "Meters" },
      el("div", { class: "card-head" }, el("h2", null, "Meters")),
      el(
        "dl",
        { class: "meters" },
        all.map((one) => one.element),
      ),
      el("div", { class: "card-head" }, el("h2", null, "Taps")),
      this.taps,
    );
  }

  /** @param {any} told */
  show(told) {
    const { before } = this;
    this.before = told;
    say(this.step.value, told.step === null ? "–" : count(told.step));
    put(this.rate, told.rate, number(told.rate));
    put(this.overhead, told.overhead, told.overhead === null ? "–" : percent(told.overhead));
    if (before) {
      const seconds = Math.max(told.time - before.time, 0.1);
      const [records, bytes] = [
        (told.received - before.received) / seconds,
        (told.nbytes - before.nbytes) / seconds,
      ];
      put(this.records, records, records.toFixed(records < 10 ? 1 : 0));
      put(this.bytes, bytes, size(bytes));
    }
    const lost = this.lostOf(told);
    say(this.lost.value, count(lost));
    this.lost.value.classList.toggle("warn", lost > 0);
    this.showTaps(told.taps);
  }

  /** @param {any} told */
  lostOf(told) {
    return told.taps.reduce(
      (/** @type {number} */ sum, /** @type {any} */ one) => sum + one.skipped + one.dropped,
      0,
    );
  }

  /** @param {number} seconds */
  shown(seconds) {
    this.ages.push(seconds);
    if (this.ages.length > KEPT) this.ages.shift();
    const usual = [...this.ages].sort((one, other) => one - other)[this.ages.length >> 1];
    put(this.lag, seconds, `${Math.round(1000 * usual)} ms`);
    this.lag.element.dataset.ms = String(Math.round(1000 * usual));
  }

  /** @type {Map<number, TapLine>} */
  lines = new Map();

  /** The same elements again and again: somebody may be about to press one. @param {any[]} taps */
  showTaps(taps) {
    const going = new Set(taps.map((one) => one.tap));
    for (const [one, line] of this.lines) if (!going.has(one)) line.element.remove();
    this.lines = new Map([...this.lines].filter(([one]) => going.has(one)));
    for (const tap of taps) {
      let line = this.lines.get(tap.tap);
      if (!line) this.lines.set(tap.tap, (line = this.line(tap)));
      if (!line.element.isConnected) this.taps.append(line.element);
      tellTap(line, tap);
    }
    this.none.hidden = taps.length > 0;
  }

  /** @param {any} tap @returns {TapLine} */
  line(tap) {
    const [state, last] = [el("div", { class: "quiet" }), el("div", { class: "quiet" })];
    const end = button("end", () => this.untap(tap.tap), {
      class: "small",
      disabled: !this.isAllowed,
      label: `end the tap ${tap.what}`,
    });
    const words = tap.condition ? tap.what : named(tap.what).join(" ");
    const what = el("span", { class: "mono clip", title: words }, words);
    return {
      element: el("li", null, el("div", { class: "wall-head" }, what, end), state, last),
      state,
      last,
    };
  }
}

/** @param {TapLine} line @param {any} tap */
function tellTap(line, tap) {
  const said = tap.condition ? `held ${count(tap.fired)} times` : `${count(tap.records)} here`;
  say(line.state, `${tap.state} · ${said}`);
  line.state.className = tap.state === "refused" ? "bad" : "quiet";
  say(line.last, tap.events[tap.events.length - 1] || "");
  line.last.className = tap.condition && tap.fired ? "warn" : "quiet";
  line.element.title = tap.events.join("\n");
}

/** @param {string} title @param {string} hint @param {boolean} isDrawn @param {AbortSignal} signal @returns {Meter} */
function made(title, hint, isDrawn, signal) {
  const value = el("dd", null, "–");
  const canvas = el("canvas", { class: "meter-line", attrs: { "aria-hidden": "true" } });
  const element = el(
    "div",
    { title: hint, data: { meter: title } },
    el("dt", null, title),
    value,
    isDrawn && el("dd", { attrs: { "aria-hidden": "true" } }, canvas),
  );
  return { element, value, spark: isDrawn ? new Spark(canvas, signal, { isFromZero: true }) : null };
}

/** @param {Meter} meter @param {number | null} value @param {string} text */
function put(meter, value, text) {
  say(meter.value, text);
  if (value !== null) meter.spark?.push(value);
}
