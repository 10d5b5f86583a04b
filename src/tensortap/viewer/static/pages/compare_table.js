// @ts-check
/** @file All pairs as a table, with the query language. */

import { query } from "../api.js";
import { el, say } from "../dom.js";
import { count, dtype, number } from "../format.js";
import { Filter } from "../filter.js";
import { VirtualTable } from "../instruments/virtual_table.js";
import { chosen, chosenNumber, note, set } from "../url.js";
import { tone } from "./compare_plain.js";

/** @typedef {import("./compare.js").Told} Told */
/** @typedef {import("../instruments/virtual_table.js").TableColumn} TableColumn */

export class PairTable {
  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    this.count = el("span", { class: "note" });
    this.host = el("div", { class: "table-host" });
    this.filter = new Filter({
      placeholder: "filter:  attn step>12 err>1e-4 verdict:drift",
      label: "Filter the pairs",
      isOfPairs: true,
      signal: told.signal,
      rows: (text) =>
        `/api/compare/${told.c}/rows.bin${query({ q: text, sort: sorting().key, desc: sorting().isDown ? 1 : null })}`,
      onFound: (found) => this.found(found),
    });
    this.table = new VirtualTable(
      this.host,
      columns(told),
      {
        label: "Pairs",
        none: "No pair is like that.",
        onSort: (key) => this.sort(key),
        onPick: (pair) => set({ ...told.pairs.words(pair), i: null, x: null, at: null }, { push: true }),
        from: chosenNumber("top", 0),
        onTop: (at) => note({ top: at || null }),
      },
      told.signal,
    );
    this.element = el(
      "section",
      { class: "card pairs-card", label: "Pairs" },
      el("div", { class: "card-head" }, el("h2", null, "Pairs"), this.count, this.filter.element),
      this.host,
    );
  }

  /** @param {number | null} selected */
  update(selected) {
    const { key, isDown } = sorting();
    this.table.sorted(key || "", isDown);
    this.filter.update();
    if (this.table.selected !== selected) this.table.select(selected);
  }

  /** @param {import("../api.js").Table} found */
  found({ facts, columns: { row } }) {
    say(this.count, `${count(facts.matched)} of ${count(facts.of)}`);
    const isPlaced = this.table.from > 0;
    this.table.show(row);
    if (this.table.selected !== null && !chosen("q") && !isPlaced) this.table.reveal(this.table.selected);
  }

  /** @param {string} key */
  sort(key) {
    const now = sorting();
    // Errors are looked at from the largest on.
    const isDown = now.key === key ? !now.isDown : !["name", "step", "rank", "kind"].includes(key);
    const isBack = now.key === key && now.isDown === ["name", "step", "rank", "kind"].includes(key);
    set({ o: isBack ? null : `${isDown ? "-" : ""}${key}` });
  }
}

/** @param {number} value */
function measured(value) {
  return Number.isNaN(value) ? "–" : value === Infinity ? "∞" : number(value);
}

function sorting() {
  const text = chosen("o") || "";
  return { key: text.replace(/^-/, "") || null, isDown: text.startsWith("-") };
}

/** @param {Told} told @returns {TableColumn[]} */
function columns({ pairs }) {
  const value = (/** @type {string} */ key, /** @type {string} */ title, /** @type {string} */ hint) => ({
    key,
    title,
    hint,
    width: "84px",
    isRight: true,
    isSortable: true,
    text: (/** @type {number} */ pair) => measured(pairs.number(key, pair)),
  });
  return [
    {
      key: "step",
      title: "step",
      width: "48px",
      isSortable: true,
      text: (pair) => String(pairs.number("step", pair)),
    },
    {
      key: "rank",
      title: "rank",
      width: "40px",
      isSortable: true,
      text: (pair) => String(pairs.number("rank", pair)),
    },
    {
      key: "name",
      isName: true,
      title: "tensor",
      width: "minmax(180px, 1fr)",
      isSortable: true,
      text: (pair) =>
        pairs.text("name", pair) + (pairs.number("call", pair) ? `@${pairs.number("call", pair)}` : ""),
    },
    {
      key: "kind",
      title: "kind",
      width: "84px",
      isSortable: true,
      text: (pair) => pairs.text("kind", pair),
      tone: () => "quiet",
    },
    {
      key: "shape",
      title: "shape",
      width: "minmax(90px, 0.35fr)",
      text: (pair) => `${dtype(pairs.text("dtype", pair))}[${pairs.text("shape", pair)}]`,
      tone: () => "quiet",
    },
    {
      key: "verdict",
      title: "verdict",
      width: "92px",
      isSortable: true,
      text: (pair) => pairs.text("verdict", pair),
      tone: (pair) => tone(pairs.text("verdict", pair)),
    },
    value("max_abs", "max |Δ|", "the largest difference of any element"),
    value("ratio", "× noise", "how many times its noise"),
    value("relative_l2", "rel L2", "|a − b| against the whole"),
    { key: "meter", title: "log error", width: "96px", draw: meter(pairs) },
  ];
}

/** The error as a bar, by its logarithm. @param {import("./pairs.js").Pairs} pairs */
function meter(pairs) {
  return (/** @type {HTMLElement} */ cell, /** @type {number} */ pair) => {
    let bar = /** @type {HTMLElement | null} */ (cell.querySelector("i"));
    if (!bar) cell.append(el("div", { class: "meter" }, (bar = el("i"))));
    const error = pairs.number("relative_l2", pair);
    const part = error > 0 ? Math.min(Math.max((Math.log10(error) + 9) / 9, 0.02), 1) : 0;
    bar.style.width = `${part * 100}%`;
  };
}
