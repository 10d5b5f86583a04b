// @ts-check
/** @file One of the values that come, large: any slice of it, drawn anew as newer ones come. */

import { button, el, say } from "../dom.js";
import { dtype, shape as shapeWords } from "../format.js";
import { Axes, element, slice, sliceSize, sliceWords } from "../instruments/axes.js";
import { chosen, set } from "../url.js";
import { ownRange } from "./colour_range.js";
import { valueBase } from "./live_wall.js";
import { Picture } from "./tensor_picture.js";

/** @typedef {import("./live_wall.js").Came} Came */

const WAITED = 1500; // milliseconds; then the next is asked for, whatever became of the last

export class Focus {
  /** @param {string} base @param {AbortSignal} signal */
  constructor(base, signal) {
    this.base = base;
    /** @type {Came | null} */
    this.last = null;
    this.asked = 0;
    this.title = el("h2", { class: "mono clip" });
    this.note = el("span", { class: "note grow clip" });
    this.axesHost = el("div", { class: "axes" });
    this.axes = new Axes(this.axesHost, (part) => {
      const { axes } = sliceWords(this.last?.shape || [], part);
      set({ i: part.index.join(","), x: axes });
    });
    this.picture = new Picture(signal, {
      onMoved: () => {},
      onRange: (low, high) => set({ g: ownRange(`${low},${high}`) ? `${low},${high}` : null }),
      onDrawn: () => (this.asked = 0),
    });
    this.element = el(
      "section",
      { class: "card live-focus", label: "The chosen value", hidden: true },
      el(
        "div",
        { class: "card-head" },
        this.title,
        this.note,
        button("Close", () => set({ t: null, i: null, x: null, g: null }), { class: "small" }),
      ),
      el("div", { class: "tensor-body" }, this.axesHost, this.picture.element),
    );
  }

  /** @param {Came | null} record */
  show(record) {
    this.element.hidden = !record?.shape.length;
    if (!record || !record.shape.length) return;
    const isOther = this.last?.key !== record.key;
    this.last = record;
    say(this.title, record.name);
    say(
      this.note,
      `${dtype(record.dtype)} ${shapeWords(record.shape)} · step ${record.step} · rank ${record.rank}`,
    );
    if (isOther || performance.now() - this.asked > WAITED) this.draw();
  }

  /** Choices of the address changed, or a newer value is here. */
  draw() {
    if (!this.last?.shape.length) return;
    const { shape, number } = this.last;
    this.asked = performance.now();
    const part = slice(shape, chosen("x"), chosen("i"));
    this.axes.show(shape, part);
    this.axesHost.hidden = shape.length < 2;
    this.picture.show({
      base: valueBase(this.base, this.last),
      look: { ...sliceWords(shape, part), number },
      size: sliceSize(shape, part),
      isOdd: false,
      range: chosen("g") || "auto",
      part: null,
      element: (row, col) => element(part, row, col),
    });
  }
}
