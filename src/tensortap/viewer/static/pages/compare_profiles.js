// @ts-check
/** @file Where the two differ: over the steps, and along each axis, one strip each. */

import { isAborted, json, real } from "../api.js";
import { el, fill } from "../dom.js";
import { fixedPlace } from "../instruments/axes.js";
import { Profile } from "../instruments/profile.js";

/** @typedef {import("../instruments/axes.js").Slice} Slice */

const MOST_AXES = 4;

export class Profiles {
  /**
   * @param {(axis: number, place: number) => void} onPick
   * @param {(pair: number) => void} onStep
   * @param {import("./pairs.js").Pairs} pairs
   * @param {AbortSignal} signal
   */
  constructor(onPick, onStep, pairs, signal) {
    this.onPick = onPick;
    this.onStep = onStep;
    this.pairs = pairs;
    this.signal = signal;
    this.shown = "";
    this.ended = new AbortController();
    /** @type {(Profile | null)[]} */
    this.strips = [];
    this.element = el("div", { class: "profiles" });
    signal.addEventListener("abort", () => this.ended.abort());
  }

  /** @param {string} base @param {number} pair @param {number[]} shape @param {Slice} part */
  show(base, pair, shape, part) {
    this.part = part;
    if (this.shown !== base) this.begin(base, pair, shape);
    this.strips.forEach((strip, axis) => {
      if (strip?.along) strip.show({ ...strip.along, selected: fixedPlace(part, axis) });
    });
  }

  /** @type {Slice | null} */
  part = null;

  /** @param {string} base @param {number} pair @param {number[]} shape */
  begin(base, pair, shape) {
    this.shown = base;
    this.ended.abort();
    this.ended = new AbortController();
    const axes = shape.map((_, axis) => axis).filter((axis) => shape[axis] > 1);
    this.strips = shape.map(() => null);
    const strips = axes.slice(-MOST_AXES).map((axis) => this.strip(base, axis, shape[axis]));
    fill(this.element, this.steps(pair), strips);
  }

  /** The error of this value over the steps. @param {number} pair */
  steps(pair) {
    const track = this.pairs.track(pair);
    if (track.length < 2) return null;
    const label = "Relative difference over the steps";
    const canvas = el("canvas", {
      class: "profile-canvas",
      role: "img",
      label,
      title: `${label}; a click goes there`,
    });
    const strip = new Profile(canvas, (place) => this.onStep(track[place]), this.ended.signal);
    const values = track.map((one) => this.pairs.number("relative_l2", one));
    const names = track.map((one) => `step ${this.pairs.number("step", one)}`);
    strip.show({
      at: values.map((_, at) => at),
      width: 1,
      length: values.length,
      values,
      selected: track.indexOf(pair),
      names,
    });
    return el("div", { class: "profile" }, el("span", { class: "quiet mono" }, "steps"), canvas);
  }

  /** @param {string} base @param {number} axis @param {number} length */
  strip(base, axis, length) {
    const { signal } = this.ended;
    const label = `The largest difference along axis ${axis}`;
    const canvas = el("canvas", {
      class: "profile-canvas",
      role: "img",
      label,
      title: `${label}; a click goes there`,
    });
    const strip = new Profile(canvas, (place) => this.onPick(axis, place), signal);
    this.strips[axis] = strip;
    this.load(strip, base, axis, length, signal).catch((error) => isAborted(error) || canvas.remove());
    return el("div", { class: "profile" }, el("span", { class: "quiet mono" }, `axis ${axis}`), canvas);
  }

  /**
   * @param {Profile} strip
   * @param {string} base
   * @param {number} axis
   * @param {number} length
   * @param {AbortSignal} signal
   */
  async load(strip, base, axis, length, signal) {
    const found = await json(`${base}/profile?side=d&d=abs&axis=${axis}`, { signal });
    const selected = this.part && fixedPlace(this.part, axis);
    strip.show({ at: found.at, width: found.width, length, values: found.max.map(real), selected });
  }
}
