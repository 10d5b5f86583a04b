// @ts-check
/** @file How one value runs over its steps and along its axes, one strip each. */

import { isAborted, json, real } from "../api.js";
import { button, el, fill } from "../dom.js";
import { size } from "../format.js";
import { fixedPlace } from "../instruments/axes.js";
import { Band } from "../instruments/band.js";

/** @typedef {import("../instruments/axes.js").Slice} Slice */
/** @typedef {{step: number, mean: number, min: number, max: number, odd: number}[]} Steps */

const MOST_AXES = 4;
/** Bytes: what takes the whole of a larger value is made when it is asked for. */
export const LARGE = 128e6;

export class Courses {
  /**
   * @param {(axis: number, place: number) => void} onPick
   * @param {(step: number) => void} onStep
   * @param {AbortSignal} signal
   */
  constructor(onPick, onStep, signal) {
    this.onPick = onPick;
    this.onStep = onStep;
    this.base = "";
    this.ended = new AbortController();
    /** @type {Map<number, Band>} */
    this.bands = new Map();
    this.steps = el("div", { class: "course-steps" });
    this.axes = el("div", { class: "courses" });
    this.element = el("div", null, this.axes, this.steps);
    this.overSteps = this.strip(
      "steps",
      "How it runs over the steps",
      this.steps,
      (place) => this.pickStep(place),
      signal,
    );
    this.steps.hidden = true;
    /** @type {Steps} */
    this.known = [];
    signal.addEventListener("abort", () => this.ended.abort());
  }

  /** @param {string} base @param {any} facts @param {Slice} part */
  show(base, facts, part) {
    this.part = part;
    if (base !== this.base) this.begin(base, facts);
    this.mark();
  }

  /** @type {Slice | null} */
  part = null;

  mark() {
    for (const [axis, band] of this.bands) band.select(this.part && fixedPlace(this.part, axis));
  }

  /** @param {string} base @param {{shape: number[], nbytes: number}} facts */
  begin(base, { shape, nbytes }) {
    this.base = base;
    this.ended.abort();
    this.ended = new AbortController();
    this.bands.clear();
    fill(this.axes);
    const long = shape.map((_, axis) => axis).filter((axis) => shape[axis] > 1);
    const read = () => {
      fill(this.axes);
      for (const axis of long.slice(-MOST_AXES)) this.along(base, axis);
    };
    if (nbytes < LARGE || !long.length) read();
    else
      this.axes.append(
        el(
          "div",
          null,
          button(`Read ${size(nbytes)} for the profiles along its axes`, read, { class: "small" }),
        ),
      );
  }

  /** @param {string} base @param {number} axis */
  along(base, axis) {
    const { signal } = this.ended;
    const label = `Smallest, mean and largest along axis ${axis}`;
    const band = this.strip(`axis ${axis}`, label, this.axes, (place) => this.onPick(axis, place), signal);
    this.bands.set(axis, band);
    json(`${base}/profile?axis=${axis}`, { signal }).then(
      (found) =>
        band.show({
          at: found.at,
          width: found.width,
          length: found.length,
          low: found.min.map(real),
          mean: found.mean.map(real),
          high: found.max.map(real),
          odd: found.nan,
          selected: this.part && fixedPlace(this.part, axis),
        }),
      (error) => isAborted(error) || band.canvas.parentElement?.remove(),
    );
  }

  /** @param {Steps} known @param {number} step the one that is shown */
  showSteps(known, step) {
    this.known = known;
    this.steps.hidden = known.length < 2;
    this.overSteps.show({
      at: known.map((_, at) => at),
      width: 1,
      length: known.length,
      low: known.map((one) => one.min),
      mean: known.map((one) => one.mean),
      high: known.map((one) => one.max),
      odd: known.map((one) => one.odd),
      selected: known.findIndex((one) => one.step === step),
      names: known.map((one) => `step ${one.step}`),
    });
  }

  /** @param {number} place */
  pickStep(place) {
    this.onStep(this.known[place].step);
  }

  /**
   * @param {string} name
   * @param {string} label
   * @param {HTMLElement} host
   * @param {(place: number) => void} onPick
   * @param {AbortSignal} signal
   */
  strip(name, label, host, onPick, signal) {
    const canvas = el("canvas", {
      class: "course-canvas",
      role: "img",
      label,
      title: `${label}; a click goes there`,
    });
    host.append(el("div", { class: "course" }, el("span", { class: "quiet mono" }, name), canvas));
    return new Band(canvas, onPick, signal);
  }
}
