// @ts-check
/** @file Every record of a run as one table, however many there are. */

import { isAborted, json, onNews, query, table } from "../api.js";
import { el, fill, say } from "../dom.js";
import { Filter } from "../filter.js";
import { count, dtype, moment, number, size } from "../format.js";
import { VirtualTable } from "../instruments/virtual_table.js";
import { listen } from "../keys.js";
import { offer } from "../palette.js";
import { address, chosen, chosenNumber, go, note, set } from "../url.js";
import { runHeader } from "./run_header.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../api.js").Column} Column */

/** @param {Context} context */
export async function mount(context) {
  const {
    params: [id],
    frame,
    signal,
  } = context;
  const [run, columns] = await Promise.all([
    json(`/api/run/${id}`, { signal }),
    table(`/api/run/${id}/columns.bin`, { signal }),
  ]);
  runHeader(frame, run, "Captures", signal);
  const page = new CapturesPage(context, run, columns);
  page.update();
  return page;
}

class CapturesPage {
  /** @param {Context} context @param {any} run @param {import("../api.js").Table} told */
  constructor({ root, signal }, run, told) {
    this.run = run;
    this.signal = signal;
    this.texts = told.facts.texts;
    this.columns = told.columns;
    this.rows = told.facts.rows;
    /** @type {Map<number, number[]>} what is known of the rows seen so far: known, mean, std, absmax, nan, inf */
    this.known = new Map();
    this.count = el("span", { class: "note" });
    this.host = el("div", { class: "table-host" });
    this.filter = new Filter({
      placeholder: "filter:  softmax step>137 nan>0 rank:3 dtype:bf16",
      label: "Filter the captures",
      signal,
      rows: (text) =>
        `/api/run/${run.id}/rows.bin${query({ q: text, sort: sorting().key, desc: sorting().isDown ? 1 : null })}`,
      onAsk: () => this.table.hold(),
      onFound: ({ facts, columns }) => {
        say(this.count, `${count(facts.matched)} of ${count(facts.of)}`);
        const order = `${chosen("q")} ${chosen("o")}`;
        this.table.show(columns.row, { keep: order === this.order });
        this.order = order;
      },
    });
    this.table = new VirtualTable(
      this.host,
      this.shown(),
      {
        label: "Captures",
        none: "No capture is like that.",
        onPick: (row) => go(this.tensor(row)),
        onSort: (key) => this.sort(key),
        onRest: (rows) => this.learn(rows),
        from: chosenNumber("top", 0),
        onTop: (at) => note({ top: at || null }),
      },
      signal,
    );
    fill(
      root,
      el(
        "section",
        { class: "card captures", label: "Captures" },
        el(
          "div",
          { class: "card-head" },
          el("h1", { class: "unseen" }, `Captures of ${run.name}`),
          el("h2", null, "Captures"),
          this.count,
          this.filter.element,
          el("a", { class: "button small", href: `/run/${run.id}` }, "Overview"),
        ),
        this.host,
      ),
    );
    listen([{ keys: ["f"], help: "filter the captures", act: () => this.filter.focus() }], signal);
    offer(
      () =>
        /** @type {string[]} */ (this.texts.name).map((name) => ({
          text: name,
          hint: "tensor",
          act: () => go(`/run/${run.id}/t/${encodeURIComponent(name)}`),
        })),
      signal,
    );
    onNews("run", (news) => news.id === run.id && this.grow(), signal);
    onNews("back", () => this.grow(), signal);
    onNews("stats", (news) => news.id === run.id && this.learnAgain(), signal);
  }

  /** What the rows were asked for by: those of a run that grows stay where they are. */
  order = "";

  update() {
    const { key, isDown } = sorting();
    this.table.sorted(key || "", isDown);
    this.filter.update();
  }

  /** @param {string} key */
  sort(key) {
    const now = sorting();
    const next = now.key !== key ? key : now.isDown ? null : `-${key}`;
    set({ o: next });
  }

  /** @param {string} column @param {number} row @returns {string} */
  text(column, row) {
    return this.texts[column][this.columns[column][row]] ?? "";
  }

  /** @param {number} row */
  tensor(row) {
    const { step, rank, call } = this.columns;
    const kind = this.text("kind", row);
    return address(`/run/${this.run.id}/t/${encodeURIComponent(this.text("name", row))}`, {
      s: step[row],
      r: rank[row] || null,
      c: call[row] || null,
      k: kind,
    });
  }

  /** Statistics are computed where somebody looks. @param {number[]} rows */
  async learn(rows) {
    const missing = rows.filter((row) => row !== undefined && !this.known.get(row)?.[0]);
    if (!missing.length) return;
    try {
      const { columns } = await table(
        `/api/run/${this.run.id}/stats.bin${query({ rows: missing.join(",") })}`,
        { signal: this.signal },
      );
      const { row, known, mean, std, absmax, nan, inf } = columns;
      row.forEach((one, at) =>
        this.known.set(one, [known[at], mean[at], std[at], absmax[at], nan[at], inf[at]]),
      );
      this.table.draw();
    } catch (error) {
      if (!isAborted(error)) say(this.count, "the statistics could not be read");
    }
  }

  learnAgain() {
    const { first, count: seen } = this.table.seen;
    this.learn(Array.from({ length: seen }, (_, at) => this.table.rows[first + at]));
  }

  isGrowing = false;

  /** A run that is being written gets longer. */
  async grow() {
    if (this.isGrowing) return;
    this.isGrowing = true;
    try {
      const { facts, columns } = await table(`/api/run/${this.run.id}/columns.bin?from=${this.rows}`, {
        signal: this.signal,
      });
      for (const [name, column] of Object.entries(columns))
        this.columns[name] = joined(this.columns[name], column);
      this.texts = facts.texts;
      this.rows = facts.rows;
      this.filter.again();
    } catch (error) {
      if (!isAborted(error)) throw error;
    } finally {
      this.isGrowing = false;
    }
  }

  /** @returns {import("../instruments/virtual_table.js").TableColumn[]} */
  shown() {
    const plain = (/** @type {string} */ key, /** @type {string} */ width) => ({
      key,
      title: key,
      width,
      isSortable: true,
      text: (/** @type {number} */ row) => String(this.columns[key][row]),
    });
    const statistic = (/** @type {string} */ key, /** @type {number} */ at) => ({
      key,
      title: key,
      width: "86px",
      isRight: true,
      isSortable: true,
      text: (/** @type {number} */ row) => this.statistic(row, at),
    });
    return [
      plain("step", "56px"),
      plain("rank", "42px"),
      {
        key: "name",
        isName: true,
        title: "tensor",
        width: "minmax(200px, 1.6fr)",
        isSortable: true,
        text: (row) => this.text("name", row) + (this.columns.call[row] ? `@${this.columns.call[row]}` : ""),
      },
      {
        key: "kind",
        title: "kind",
        width: "90px",
        isSortable: true,
        text: (row) => this.text("kind", row),
        tone: () => "quiet",
      },
      {
        key: "shape",
        title: "type",
        width: "minmax(110px, 0.6fr)",
        isSortable: true,
        text: (row) => typeWords(this.text("dtype", row), this.text("shape", row)),
        tone: () => "soft",
      },
      {
        key: "nbytes",
        title: "size",
        width: "70px",
        isRight: true,
        isSortable: true,
        text: (row) => size(this.columns.nbytes[row]),
        tone: () => "quiet",
      },
      statistic("mean", 1),
      statistic("std", 2),
      statistic("absmax", 3),
      {
        key: "nan",
        title: "NaN, Inf",
        width: "84px",
        isRight: true,
        isSortable: true,
        hint: "how many elements are not finite",
        text: (row) => this.odd(row),
        tone: (row) => (this.odd(row) === "–" || this.odd(row) === "" ? "quiet" : "bad"),
      },
      {
        key: "time",
        title: "time",
        width: "68px",
        isRight: true,
        isSortable: true,
        text: (row) => (this.columns.time[row] ? moment(this.columns.time[row]).slice(11) : ""),
        tone: () => "quiet",
      },
    ];
  }

  /** @param {number} row @param {number} at */
  statistic(row, at) {
    const known = this.known.get(row);
    return !known ? "" : known[0] === 1 ? number(known[at]) : known[0] === 2 ? "" : "…";
  }

  /** @param {number} row */
  odd(row) {
    const known = this.known.get(row);
    if (!known || known[0] !== 1) return "";
    const [, , , , nan, inf] = known;
    return [nan && `${count(nan)} NaN`, inf && `${count(inf)} Inf`].filter(Boolean).join(" ") || "–";
  }
}

function sorting() {
  const text = chosen("o") || "";
  return { key: text.replace(/^-/, "") || null, isDown: text.startsWith("-") };
}

/** @param {string} type @param {string} shape */
function typeWords(type, shape) {
  return shape ? `${dtype(type)}[${shape}]` : dtype(type);
}

/** @param {Column} one @param {Column} other */
function joined(one, other) {
  const made = new /** @type {any} */ (one.constructor)(one.length + other.length);
  made.set(one);
  made.set(other, one.length);
  return made;
}
