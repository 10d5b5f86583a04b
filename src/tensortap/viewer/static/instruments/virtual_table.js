// @ts-check
/** @file A table of any length: only the rows in sight exist, and they are used again. */

import { el, say } from "../dom.js";
import { middle } from "../format.js";

/**
 * @typedef {{
 *   key: string, title: string, width: string, isRight?: boolean, isSortable?: boolean, isName?: boolean, hint?: string,
 *   text?: (row: number) => string, tone?: (row: number) => string, draw?: (cell: HTMLElement, row: number) => void,
 * }} TableColumn
 */
/**
 * @typedef {{
 *   label: string, onPick?: (row: number) => void, onSort?: (key: string) => void, onRest?: (rows: number[]) => void,
 *   none?: string, from?: number, onTop?: (at: number) => void,
 * }} TableActs `from` is the place that is on top at first, `onTop` hears which one it is when scrolling by hand rests
 */

/** @typedef {{element: HTMLElement, cells: HTMLElement[], look: string}} Line */

const ROW = 26;
const CHARACTER = 7.3; // pixels of one, in the type of the rows
const RESTED = 60; // milliseconds
const HELD = 1000;
const TALLEST = 8e6; // browsers lose pixels in elements that are taller

export class VirtualTable {
  /**
   * @param {HTMLElement} host
   * @param {TableColumn[]} columns
   * @param {TableActs} acts
   * @param {AbortSignal} signal
   */
  constructor(host, columns, acts, signal) {
    this.columns = columns;
    this.acts = acts;
    /** @type {ArrayLike<number>} */
    this.rows = [];
    /** @type {number | null} */
    this.selected = null;
    this.from = acts.from || 0;
    /** @type {Line[]} */
    this.pool = [];
    this.template = columns.map((one) => one.width).join(" ");
    this.space = el("div", { class: "vt-space", role: "presentation" });
    this.none = el("div", { class: "vt-none", hidden: true }, acts.none || "nothing here");
    this.body = el("div", { class: "vt-body", role: "rowgroup", attrs: { tabindex: 0 } }, this.space);
    this.head = this.heading();
    this.grid = el("div", { class: "vt", role: "grid", label: acts.label }, this.head, this.body);
    host.append(this.grid, this.none);
    this.listen(signal);
  }

  /** @param {ArrayLike<number>} rows in their order @param {{keep?: boolean}} [how] stay where it is scrolled to */
  show(rows, how = {}) {
    this.rows = rows;
    this.grid.setAttribute("aria-rowcount", String(rows.length + 1));
    this.height = Math.min(rows.length * ROW, TALLEST);
    this.space.style.height = `${this.height}px`;
    this.none.hidden = rows.length > 0;
    if (this.from && rows.length > this.from) this.begin();
    else if (!how.keep) this.rewind();
    this.draw();
    this.rest();
  }

  /** Where somebody was, who has shared what was seen. */
  begin() {
    this.body.scrollTop = this.from * ROW * this.stretch();
    this.from = 0;
  }

  rewind() {
    this.body.scrollTop = 0;
    if (!this.from) this.acts.onTop?.(0);
  }

  isByHand = false;

  height = 0;
  isAsked = false;
  resting = 0;

  /** @param {number | null} row */
  select(row) {
    this.selected = row;
    this.draw();
  }

  /** Scroll to a row that may be out of sight. @param {number} row */
  reveal(row) {
    const at = Array.prototype.indexOf.call(this.rows, row);
    if (at < 0) return;
    const y = at * ROW * this.stretch();
    const { scrollTop, clientHeight } = this.body;
    if (y < scrollTop || y + ROW > scrollTop + clientHeight) this.body.scrollTop = y - clientHeight / 2;
  }

  order = "";

  /** @param {string} key @param {boolean} isDown */
  sorted(key, isDown) {
    if (this.order === `${key} ${isDown}`) return;
    this.order = `${key} ${isDown}`;
    for (const cell of this.head.querySelectorAll("[data-key]")) {
      const isIt = cell.getAttribute("data-key") === key;
      cell.setAttribute("aria-sort", isIt ? (isDown ? "descending" : "ascending") : "none");
      const text = cell.querySelector("button") || cell;
      const column = this.columns.find((one) => one.key === cell.getAttribute("data-key"));
      text.textContent = `${column?.title || ""}${isIt ? (isDown ? " ↓" : " ↑") : ""}`;
    }
  }

  /** Of names that are too long, beginning and end are shown. @param {TableColumn} column @param {number} row */
  words(column, row) {
    const text = column.text ? column.text(row) : "";
    return column.isName ? middle(text, this.room(column.key)) : text;
  }

  /** How many characters fit into a column. @param {string} key */
  room(key) {
    this.rooms[key] ??= Math.floor(
      (this.head.querySelector(`[data-key=${key}]`)?.clientWidth || 300) / CHARACTER,
    );
    return this.rooms[key];
  }

  /** Measured once for each size of the table: to ask in between makes the browser lay it out. @type {Record<string, number>} */
  rooms = {};

  /** How much the scroll bar is pressed together. */
  stretch() {
    return this.rows.length ? this.height / (this.rows.length * ROW) : 1;
  }

  /** All rows in sight anew: what they show may have changed. */
  draw() {
    this.edition += 1;
    this.drawSeen();
  }

  edition = 0;

  /** A row keeps its place in the pool while it is in sight, so that scrolling only fills those that come. */
  drawSeen() {
    this.isAsked = false;
    const { scrollTop, clientHeight } = this.body;
    const squeeze = this.stretch();
    const first = Math.max(0, Math.floor(scrollTop / squeeze / ROW) - (squeeze < 1 ? 0 : 2));
    const count = Math.max(0, Math.min(Math.ceil(clientHeight / ROW) + 5, this.rows.length - first));
    while (this.pool.length < Math.ceil(clientHeight / ROW) + 5) this.grow();
    this.seen = { first, count };
    const seen = new Set();
    for (let at = first; at < first + count; at++) {
      const line = this.pool[at % this.pool.length];
      const y = squeeze < 1 ? scrollTop + (at - first) * ROW : at * ROW;
      const look = `${at} ${this.edition} ${y}`;
      seen.add(line);
      if (line.look !== look) this.fillLine(line, at, y);
      line.look = look;
    }
    for (const line of this.pool) if (!seen.has(line)) this.hide(line);
  }

  /** @param {Line} line */
  hide(line) {
    line.look = "";
    line.element.hidden = true;
  }

  seen = { first: 0, count: 0 };

  /**
   * @param {Line} line
   * @param {number} at
   * @param {number} y
   */
  fillLine(line, at, y) {
    const row = this.rows[at];
    line.element.hidden = false;
    line.element.style.transform = `translateY(${y}px)`;
    line.element.setAttribute("aria-rowindex", String(at + 2));
    line.element.setAttribute("aria-selected", String(row === this.selected));
    this.columns.forEach((column, index) => {
      const cell = line.cells[index];
      if (column.draw) column.draw(cell, row);
      else say(cell, this.words(column, row));
      const tone = `${column.isRight ? "is-right " : ""}${column.tone ? column.tone(row) : ""}`;
      if (cell.className !== tone) cell.className = tone;
    });
  }

  grow() {
    const cells = this.columns.map(() => el("div", { role: "gridcell" }));
    const element = el(
      "div",
      { class: "vt-row", role: "row", style: { "grid-template-columns": this.template } },
      cells,
    );
    this.pool.push({ element, cells, look: "" });
    this.body.append(element);
  }

  heading() {
    const cells = this.columns.map((one) => {
      const inner = one.isSortable
        ? el(
            "button",
            {
              type: "button",
              class: one.isRight ? "is-right" : "",
              title: one.hint || "",
              on: { click: () => this.acts.onSort?.(one.key) },
            },
            one.title,
          )
        : el("span", { class: one.isRight ? "number-head" : "", title: one.hint || "" }, one.title);
      return el("div", { role: "columnheader", data: { key: one.key } }, inner);
    });
    const row = el(
      "div",
      { class: "vt-head", role: "row", style: { "grid-template-columns": this.template } },
      cells,
    );
    return el("div", { role: "rowgroup" }, row);
  }

  /** @param {AbortSignal} signal */
  listen(signal) {
    const ask = () => {
      if (!this.isAsked) requestAnimationFrame(() => this.drawSeen());
      this.isAsked = true;
      this.rest();
    };
    this.body.addEventListener("scroll", ask, { signal, passive: true });
    for (const name of ["wheel", "pointerdown", "keydown", "touchmove"])
      this.body.addEventListener(name, () => this.take(), { signal, passive: true });
    const watch = new ResizeObserver(() => {
      this.rooms = {};
      this.draw();
    });
    watch.observe(this.body);
    signal.addEventListener("abort", () => watch.disconnect());
    this.body.addEventListener(
      "click",
      (event) => {
        const element = /** @type {Element} */ (event.target).closest(".vt-row");
        const at = element ? Number(element.getAttribute("aria-rowindex")) - 2 : -1;
        if (at >= 0) this.pick(at);
      },
      { signal },
    );
    this.body.addEventListener("keydown", (event) => this.steer(event), { signal });
  }

  /** From now on the place is that of the hand. */
  take() {
    this.isByHand = true;
    this.from = 0;
  }

  /** @param {KeyboardEvent} event */
  steer(event) {
    const move = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!move && event.key !== "Enter") return;
    event.preventDefault();
    const at = this.selected === null ? -1 : Array.prototype.indexOf.call(this.rows, this.selected);
    const next = Math.min(Math.max(at + move, 0), this.rows.length - 1);
    if (!this.rows.length) return;
    this.select(this.rows[next]);
    this.reveal(this.rows[next]);
    if (event.key === "Enter") this.pick(next);
  }

  /** @param {number} at */
  pick(at) {
    this.select(this.rows[at]);
    this.acts.onPick?.(this.rows[at]);
  }

  /** Other rows are on their way: nothing is asked for about these until they are here, or late. */
  hold() {
    this.rest(HELD);
  }

  /** Once the scrolling rests, what is in sight may be asked for. */
  rest(wait = RESTED) {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      const { first, count } = this.seen;
      if (this.isByHand) this.acts.onTop?.(Math.round(this.body.scrollTop / this.stretch() / ROW));
      this.acts.onRest?.(Array.from({ length: Math.max(count, 0) }, (_, at) => this.rows[first + at]));
    }, wait);
  }
}
