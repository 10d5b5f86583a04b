// @ts-check
/** @file What a job could show: each line has a switch that places a tap, or takes it away. */

import { isAborted, json, query } from "../api.js";
import { button, el, fill, say } from "../dom.js";
import { count, dtype, plural } from "../format.js";
import { VirtualTable } from "../instruments/virtual_table.js";
import { tell, words } from "../messages.js";
import { chosen, set } from "../url.js";

/** @typedef {{name: string, kind: string, class: string, dtype: string, shape: number[] | null, tap: number | null}} Place */
/** @typedef {{tap: number, what: string, state: string, names: string[], condition: boolean}} Tap */

const GOING = ["armed", "requested", "looking"];
const HELD = 10;
export const WHY_NOT = "Taps are placed only after `tensortap view --allow-actions`.";

export class Catalog {
  /** @param {string} base @param {boolean} isAllowed @param {AbortSignal} signal */
  constructor(base, isAllowed, signal) {
    this.base = base;
    this.isAllowed = isAllowed;
    this.signal = signal;
    /** @type {Place[]} */
    this.places = [];
    /** @type {Map<string, number>} the tap of each name that has one */
    this.taps = new Map();
    /** @type {Set<string>} */
    this.pending = new Set();
    this.asked = "?";
    this.note = el("span", { class: "note" });
    this.search = el("input", {
      class: "field grow",
      type: "search",
      label: "Search the catalog",
      attrs: { placeholder: "search:  attn", autocomplete: "off", spellcheck: "false" },
      on: { input: () => set({ q: this.search.value }) },
    });
    this.host = el("div", { class: "table-host" });
    this.table = new VirtualTable(
      this.host,
      this.columns(),
      {
        label: "Catalog",
        none: "The job offers nothing of that name.",
        onPick: (row) => this.toggle(this.places[row]),
      },
      signal,
    );
    this.element = el(
      "section",
      { class: "card live-catalog", label: "Catalog" },
      el("div", { class: "card-head" }, el("h2", null, "Catalog"), this.note),
      el("div", { class: "live-search" }, this.search),
      !isAllowed && el("p", { class: "live-why" }, WHY_NOT),
      this.host,
      this.asking(),
    );
  }

  /** @returns {import("../instruments/virtual_table.js").TableColumn[]} */
  columns() {
    return [
      { key: "tap", title: "on", width: "30px", draw: (cell, row) => this.drawSwitch(cell, row) },
      {
        key: "name",
        isName: true,
        title: "site",
        width: "minmax(0, 1fr)",
        text: (row) => this.places[row].name,
      },
      {
        key: "type",
        title: "type",
        width: "92px",
        isRight: true,
        text: (row) => typeWords(this.places[row]),
        tone: () => "quiet",
      },
    ];
  }

  /** @param {HTMLElement} cell @param {number} row */
  drawSwitch(cell, row) {
    const place = this.places[row];
    let made = cell.querySelector("button");
    if (!made) {
      made = el("button", { type: "button", class: "switch", role: "switch", attrs: { tabindex: -1 } });
      fill(cell, made);
    }
    const isOn = this.taps.has(place.name);
    made.setAttribute("aria-checked", String(isOn));
    made.setAttribute("aria-label", `tap ${place.name}`);
    made.disabled = !this.isAllowed || this.pending.has(place.name);
    made.title = this.isAllowed ? (isOn ? "end this tap" : "place a tap") : WHY_NOT;
  }

  asking() {
    const pattern = el("input", {
      class: "field grow",
      label: "Patterns to tap",
      attrs: { placeholder: "tap:  layers.*.attn", spellcheck: "false" },
      disabled: !this.isAllowed,
    });
    const every = el("input", {
      class: "field live-every",
      type: "number",
      label: "Every so many steps",
      attrs: { min: 1, value: 1 },
      disabled: !this.isAllowed,
    });
    const keep = el(
      "select",
      { class: "field", label: "What is sent", disabled: !this.isAllowed },
      el("option", { attrs: { value: "" } }, "values"),
      el("option", { attrs: { value: "stats" } }, "statistics"),
    );
    const condition = el("input", {
      class: "field grow",
      label: "Condition to watch",
      attrs: { placeholder: "when:  absmax(layers.*) > 1e3", spellcheck: "false" },
      disabled: !this.isAllowed,
    });
    const then = el(
      "select",
      { class: "field", label: "What happens then", disabled: !this.isAllowed },
      ["tell", "send", "dump"].map((word) => el("option", { attrs: { value: word } }, word)),
    );
    const most = el("input", {
      class: "field live-every",
      type: "number",
      label: "Steps in which it holds before the watch ends",
      attrs: { min: 1, value: HELD },
      disabled: !this.isAllowed,
    });
    const why = { class: "small", disabled: !this.isAllowed, title: this.isAllowed ? "" : WHY_NOT };
    this.options = () => ({ every: Number(every.value) || 1, keep: keep.value || null });
    const tap = () => {
      const patterns = pattern.value.split(/[\s;]+/).filter(Boolean);
      if (patterns.length) this.post("tap", { patterns, ...this.options() });
    };
    const watch = () =>
      condition.value &&
      this.post("watch", { condition: condition.value, then: then.value, first: Number(most.value) || HELD });
    pattern.addEventListener("keydown", (event) => event.key === "Enter" && tap());
    condition.addEventListener("keydown", (event) => event.key === "Enter" && watch());
    return el(
      "div",
      { class: "live-ask" },
      el("div", null, pattern, button("Tap", tap, why)),
      el("div", null, el("label", null, "every ", every), el("label", null, "send ", keep)),
      el("div", null, condition, then, button("Watch", watch, why)),
      el("div", null, el("label", null, "the watch ends after it held in ", most, " steps")),
    );
  }

  /** How taps are placed by a switch: as the fields below say. @type {() => {every: number, keep: string | null}} */
  options = () => ({ every: 1, keep: null });

  async update() {
    const text = chosen("q") || "";
    if (document.activeElement !== this.search) this.search.value = text;
    if (text === this.asked) return;
    this.asked = text;
    try {
      const { places, of } = await json(`${this.base}/catalog${query({ q: text })}`, { signal: this.signal });
      if (text !== this.asked) return;
      this.places = places;
      for (const place of places) if (place.tap !== null) this.taps.set(place.name, place.tap);
      say(
        this.note,
        `${count(of)} ${of === 1 ? "site" : "sites"}${of > places.length ? `, ${count(places.length)} shown` : ""}`,
      );
      this.table.show(Array.from(places, (_, at) => at));
    } catch (error) {
      if (!isAborted(error)) say(this.note, words(error));
    }
  }

  /** What is tapped now, as the job says. @param {Tap[]} taps */
  know(taps) {
    /** @type {Map<string, number>} */
    const found = new Map();
    for (const one of taps) {
      if (one.condition || !GOING.includes(one.state)) continue;
      for (const name of [...one.names, ...named(one.what)]) found.set(name, one.tap);
    }
    const isSame =
      found.size === this.taps.size && [...found].every(([name, tap]) => this.taps.get(name) === tap);
    this.taps = found;
    if (!isSame) this.table.draw();
  }

  /** @param {Place} place */
  async toggle(place) {
    if (!this.isAllowed) return tell(WHY_NOT);
    if (this.pending.has(place.name)) return undefined;
    const tap = this.taps.get(place.name);
    this.pending.add(place.name);
    this.table.draw();
    if (tap === undefined) await this.post("tap", { patterns: [place.name], ...this.options() });
    else await this.post("untap", { tap });
    this.pending.delete(place.name);
    this.table.draw();
    return undefined;
  }

  /** @param {string} what @param {any} body */
  async post(what, body) {
    // Nothing more is asked for of a tap that is about to end.
    if (what === "untap") this.onEnding(body.tap, true);
    try {
      const { tap } = await json(`${this.base}/${what}`, { post: body, signal: this.signal });
      if (tap && !tap.condition) for (const name of named(tap.what)) this.taps.set(name, tap.tap);
      if (what === "untap")
        for (const [name, one] of [...this.taps]) if (one === body.tap) this.taps.delete(name);
      if (what === "watch")
        tell(`The job watches ${body.condition}, until it held in ${plural(body.first, "step")}.`);
    } catch (error) {
      if (what === "untap") this.onEnding(body.tap, false);
      if (!isAborted(error)) tell(words(error), { isBad: true });
    }
    this.table.draw();
  }

  /** @type {(tap: number, isOver: boolean) => void} */
  onEnding = () => {};
}

/** The patterns of a tap, which are told as Python writes them. @param {string} what */
export function named(what) {
  return [...what.matchAll(/'([^']*)'/g)].map(([, name]) => name);
}

/** @param {Place} place */
function typeWords(place) {
  if (place.shape) return `${dtype(place.dtype)}[${place.shape.join(",")}]`;
  return place.class || place.kind;
}
