// @ts-check
/** @file Which two axes of an array are seen, and where along the others: by dragging, by menu, by slider. */

import { el, fill } from "../dom.js";

/** How an axis that is not shown is done away with. */
const REDUCTIONS = ["mean", "max", "min", "absmax", "std"];
/**
 * @typedef {{rows: number, cols: number, index: (number | string)[]}} Slice
 * `rows` and `cols` are axes (rows is -1 for a line); `index` has a place or a reduction for each of the others
 */

/**
 * From the words of an address; what is missing or impossible is as by default: the last two axes, place 0.
 * @param {number[]} shape
 * @param {string | null} axes "2,3"
 * @param {string | null} index "0,3,:,:"
 * @returns {Slice}
 */
export function slice(shape, axes, index) {
  const last = shape.length - 1;
  const asked = (axes || "").split(",").filter(Boolean).map(Number);
  const isGood =
    asked.length && asked.every((one, at) => one >= 0 && one <= last && asked.indexOf(one) === at);
  const [rows, cols] = isGood ? (asked.length > 1 ? asked : [-1, asked[0]]) : [last - 1, last];
  const given = (index || "").split(",");
  const words = shape.map((length, axis) => {
    const word = given.length === shape.length ? given[axis].trim() : "0";
    if (REDUCTIONS.includes(word)) return word;
    const at = Number(word);
    return Number.isInteger(at) ? Math.min(Math.max(at, 0), length - 1) : 0;
  });
  return { rows, cols, index: words };
}

/** As the server and the address want it. @param {number[]} shape @param {Slice} part */
export function sliceWords(shape, part) {
  if (!shape.length) return { axes: "", index: "" };
  const index = part.index
    .map((word, axis) => (axis === part.rows || axis === part.cols ? ":" : word))
    .join(",");
  return { axes: part.rows < 0 ? `${part.cols}` : `${part.rows},${part.cols}`, index };
}

/** @param {number[]} shape @param {Slice} part @returns {[number, number]} */
export function sliceSize(shape, part) {
  return [part.rows < 0 ? 1 : shape[part.rows], part.cols < 0 ? 1 : shape[part.cols]];
}

/** Where an axis stands still; null where it is seen or reduced. @param {Slice} part @param {number} axis */
export function fixedPlace(part, axis) {
  const word = part.index[axis];
  return axis === part.rows || axis === part.cols || typeof word !== "number" ? null : word;
}

/** The element of the whole that stands at a place of the slice. @param {Slice} part @param {number} row @param {number} col */
export function element(part, row, col) {
  return part.index.map((word, axis) => (axis === part.rows ? row : axis === part.cols ? col : word));
}

export class Axes {
  /**
   * @param {HTMLElement} host
   * @param {(part: Slice) => void} onChange
   */
  constructor(host, onChange) {
    this.host = host;
    this.onChange = onChange;
    /** @type {number[]} */
    this.shape = [];
    /** @type {Slice} */
    this.part = { rows: -1, cols: -1, index: [] };
    /** @type {number | null} */
    this.dragged = null;
  }

  /** @param {number[]} shape @param {Slice} part */
  show(shape, part) {
    const isSame =
      String(shape) === String(this.shape) && part.rows === this.part.rows && part.cols === this.part.cols;
    this.shape = shape;
    this.part = part;
    // A slider in motion must stay the same element.
    if (isSame && this.host.contains(document.activeElement)) this.say();
    else
      fill(
        this.host,
        shape.map((length, axis) => this.axis(axis, length)),
      );
  }

  say() {
    this.host.querySelectorAll("[data-place]").forEach((place) => {
      const axis = Number(place.getAttribute("data-place"));
      place.textContent = `${this.part.index[axis]} / ${this.shape[axis] - 1}`;
    });
  }

  /** @param {number} axis */
  role(axis) {
    if (axis === this.part.rows) return "rows";
    if (axis === this.part.cols) return "cols";
    const word = this.part.index[axis];
    return typeof word === "string" ? word : "at";
  }

  /** @param {number} axis @param {number} length */
  axis(axis, length) {
    const role = this.role(axis);
    return el(
      "div",
      {
        class: `axis is-${role === "rows" || role === "cols" ? "shown" : "hidden-axis"}`,
        attrs: { draggable: "true" },
        data: { axis },
        title: "drag onto another axis to swap the two",
        on: {
          // A slider inside is dragged itself.
          pointerdown: (event) => (event.currentTarget.draggable = !event.target.closest("input, select")),
          dragstart: () => (this.dragged = axis),
          dragover: (event) => event.preventDefault(),
          drop: (event) => {
            event.preventDefault();
            this.swap(axis);
          },
        },
      },
      this.menu(axis, length, role),
      role === "at" && length > 1 && this.slider(axis, length),
    );
  }

  /** @param {number} axis @param {number} length @param {string} role */
  menu(axis, length, role) {
    const roles = ["rows", "cols", "at", ...REDUCTIONS];
    const names = /** @type {Record<string, string>} */ ({ rows: "rows ↓", cols: "cols →", at: "at" });
    const options = roles.map((one) => {
      const option = el("option", { attrs: { value: one } }, names[one] || `${one} of`);
      option.selected = one === role;
      return option;
    });
    const select = el(
      "select",
      {
        label: `axis ${axis}, ${length} long`,
        on: { change: (event) => this.assign(axis, event.target.value) },
      },
      options,
    );
    return el(
      "label",
      { class: "axis-name" },
      select,
      el("span", null, el("span", { class: "axis-word" }, "axis "), axis),
      el("b", null, length),
    );
  }

  /** @param {number} axis @param {number} length */
  slider(axis, length) {
    const at = this.part.index[axis];
    const input = el("input", {
      type: "range",
      label: `place on axis ${axis}`,
      attrs: { min: 0, max: length - 1, value: at },
      on: { input: (event) => this.place(axis, Number(event.target.value)) },
    });
    return [input, el("span", { class: "axis-place", data: { place: axis } }, `${at} / ${length - 1}`)];
  }

  /** @param {number} axis @param {number} at */
  place(axis, at) {
    const index = [...this.part.index];
    index[axis] = at;
    this.onChange({ ...this.part, index });
  }

  /** @param {number} axis @param {string} role */
  assign(axis, role) {
    const { rows, cols, index } = this.part;
    if (role === "rows") return this.onChange({ rows: axis, cols: cols === axis ? rows : cols, index });
    if (role === "cols") return this.onChange({ rows: rows === axis ? cols : rows, cols: axis, index });
    const free = this.shape
      .map((_, one) => one)
      .filter((one) => one !== axis && one !== rows && one !== cols);
    const next = free.length ? free[free.length - 1] : -1;
    const words = [...index];
    words[axis] = role === "at" ? 0 : role;
    if (axis === rows) return this.onChange({ rows: next, cols, index: words });
    if (axis !== cols) return this.onChange({ rows, cols, index: words });
    // The last axis in sight stays; there is no picture of none.
    if (rows < 0 && next < 0) return this.show(this.shape, this.part);
    return this.onChange({ rows: next < 0 ? -1 : rows, cols: next < 0 ? rows : next, index: words });
  }

  /** @param {number} axis */
  swap(axis) {
    const from = this.dragged;
    this.dragged = null;
    if (from === null || from === axis) return;
    const index = [...this.part.index];
    [index[from], index[axis]] = [index[axis], index[from]];
    for (const one of [from, axis]) {
      const word = index[one];
      if (typeof word === "number") index[one] = Math.min(word, this.shape[one] - 1);
    }
    const turned = (/** @type {number} */ one) => (one === from ? axis : one === axis ? from : one);
    this.onChange({ rows: turned(this.part.rows), cols: turned(this.part.cols), index });
  }
}
