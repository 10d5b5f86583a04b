// @ts-check
/** @file The calls of a run as a tree: what each variable became, and where it first was not a number. */

import { isAborted, json, onNews, query, table } from "../api.js";
import { button, choice, choose, el, fill, say } from "../dom.js";
import { count, plural } from "../format.js";
import { VirtualTable } from "../instruments/virtual_table.js";
import { listen } from "../keys.js";
import { tell, words } from "../messages.js";
import { chosen, chosenNumber, chosenWords, go, note, set, turned } from "../url.js";
import { Lines } from "./call_lines.js";
import { Records } from "./records.js";
import { runHeader } from "./run_header.js";
import { drawLine, noCalls } from "./trace_cells.js";
import { lineColumns, meanWords, treeColumns, where } from "./trace_columns.js";

/** @typedef {import("../app.js").Context} Context */

const PAGE = 2000;
const MOST = 60000;
/** @type {[string, string, string?][]} */
const DEPTHS = [
  ["1", "1", "only the outermost call is open"],
  ["2", "2", "two levels of calls are open"],
  ["3", "3", "three levels of calls are open"],
  ["all", "all", "every call is open"],
];

/** @param {Context} context */
export async function mount(context) {
  const {
    params: [id],
    root,
    frame,
    signal,
  } = context;
  const [run, told] = await Promise.all([
    json(`/api/run/${id}`, { signal }),
    json(`/api/run/${id}/trace`, { signal }),
  ]);
  runHeader(frame, run, told.source === "calls" ? "Call tree" : "Values of each step", signal);
  if (!told.trees.length) {
    fill(root, noCalls(run));
    return {};
  }
  const page = new TracePage(context, run, told);
  page.update();
  return page;
}

class TracePage {
  /** @param {Context} context @param {any} run @param {any} told */
  constructor({ root, signal }, run, told) {
    this.run = run;
    this.signal = signal;
    this.trees = told.trees;
    this.hasCalls = told.source === "calls";
    this.key = "";
    this.lines = new Lines(this.hasCalls);
    /** @type {Map<number, string>} what is known of values, by row */
    this.known = new Map();
    /** @type {Promise<Records> | null} */
    this.records = null;
    this.note = el("span", { class: "note clip grow" });
    this.search = el("input", {
      class: "field filter",
      type: "search",
      label: "Search the lines",
      attrs: { placeholder: "search:  scores", autocomplete: "off", spellcheck: "false" },
      on: { input: () => set({ q: this.search.value }) },
    });
    this.depths = choice("Open calls", DEPTHS, "all", (key) =>
      set({ d: key === "all" ? null : key, c: null }),
    );
    this.only = button("only changes", () => set({ m: chosen("m") ? null : "1" }), {
      class: "small",
      attrs: { "aria-pressed": "false" },
    });
    this.alarm = el("div", { class: "trace-alarm", role: "status", hidden: true });
    this.treeHost = el("div", { class: "table-host" });
    this.host = el("div", { class: "table-host" });
    this.treeTable = this.makeTreeTable();
    this.table = this.makeTable();
    const what = this.hasCalls ? "Call tree" : "Values of each step";
    fill(root, el("h1", { class: "unseen" }, `${what} of ${run.name}`), this.layOut());
    listen(
      [
        { keys: ["j", "k"], help: "next tree, tree before", act: (key) => this.beside(key === "j" ? 1 : -1) },
        { keys: ["f"], help: "search the lines", act: () => this.search.focus() },
        { keys: ["n"], help: "to the first NaN or Inf", act: () => this.showOdd() },
      ],
      signal,
    );
    onNews("stats", (news) => news.id === run.id && this.renew(), signal);
  }

  layOut() {
    const what = this.hasCalls ? "Calls" : "Steps";
    return el(
      "div",
      { class: "trace-page" },
      el(
        "section",
        { class: "card trace-trees", label: what },
        el(
          "div",
          { class: "card-head" },
          el("h2", null, what),
          el("span", { class: "note" }, count(this.trees.length)),
        ),
        this.treeHost,
      ),
      el(
        "section",
        { class: "card trace-lines", label: "Lines" },
        el(
          "div",
          { class: "card-head" },
          el("h2", null, this.hasCalls ? "Call tree" : "Values of the step"),
          this.note,
          this.search,
          this.only,
          this.hasCalls && this.depths,
        ),
        this.alarm,
        this.host,
      ),
    );
  }

  makeTreeTable() {
    const onPick = (/** @type {number} */ at) => set({ tree: this.trees[at].tree, c: null }, { push: true });
    const columns = treeColumns((at) => this.trees[at], this.hasCalls);
    return new VirtualTable(this.treeHost, columns, { label: "Trees", onPick }, this.signal);
  }

  makeTable() {
    const columns = lineColumns({
      line: (at) => this.lines.all[at],
      hasCalls: this.hasCalls,
      known: (row) => this.known.get(row) || "",
      drawName: (cell, at) => this.drawName(cell, at),
    });
    return new VirtualTable(
      this.host,
      columns,
      {
        label: "Lines",
        none: "No line is like that.",
        onPick: (at) => this.open(at),
        onRest: (rows) => this.learn(rows),
        from: chosenNumber("top", 0),
        onTop: (at) => note({ top: at || null }),
      },
      this.signal,
    );
  }

  /** @param {HTMLElement} cell @param {number} at */
  drawName(cell, at) {
    const isCall = this.lines.isCall(at);
    drawLine(cell, this.lines.all[at], {
      hasCalls: this.hasCalls,
      isCall,
      isOpen: isCall && this.lines.isOpen(at, this.deepest()),
      isFirst: this.lines.firstOdd() === at,
      turn: () => this.turn(at),
    });
  }

  deepest() {
    return Number(chosen("d")) || Infinity;
  }

  update() {
    const key = chosen("tree") || this.trees[0].tree;
    choose(this.depths, chosen("d") || "all");
    this.only.setAttribute("aria-pressed", String(Boolean(chosen("m"))));
    if (document.activeElement !== this.search) this.search.value = chosen("q") || "";
    const byHand = new Set(chosenWords("c").map(Number));
    this.lines.turned = byHand;
    if (key === this.key) return this.draw();
    this.key = key;
    this.lines = new Lines(this.hasCalls);
    this.lines.turned = byHand;
    const at = this.trees.findIndex((/** @type {any} */ one) => one.tree === key);
    if (!this.treeTable.rows.length)
      this.treeTable.show(this.trees.map((/** @type {any} */ _, /** @type {number} */ one) => one));
    this.treeTable.select(at);
    this.treeTable.reveal(at);
    return this.load();
  }

  /** Page after page; what is here is drawn at once. @param {boolean} [isAgain] then it stays where it is scrolled to */
  async load(isAgain = false) {
    const { key } = this;
    try {
      for (let from = 0, of = 1; from < Math.min(of, MOST); from += PAGE) {
        const page = await json(`/api/run/${this.run.id}/trace${query({ tree: key, from, count: PAGE })}`, {
          signal: this.signal,
        });
        if (key !== this.key) return;
        of = page.of;
        this.lines.add(page);
        this.draw(isAgain || from > 0);
      }
    } catch (error) {
      if (!isAborted(error)) say(this.note, words(error));
    }
  }

  isRenewing = false;
  isStale = false;

  /** Again, with the statistics that came: one after the other, however often they come. */
  async renew() {
    this.isStale = true;
    if (this.isRenewing) return;
    this.isRenewing = true;
    while (this.isStale && !this.signal.aborted) {
      this.isStale = false;
      await this.load(true);
    }
    this.isRenewing = false;
  }

  draw(isMore = true) {
    const { all, of } = this.lines;
    const rows = this.lines.seen(this.deepest(), chosen("q") || "", Boolean(chosen("m")));
    const here = all.length < of ? `${count(all.length)} of ${count(of)} lines` : plural(of, "line");
    say(this.note, rows.length < all.length ? `${count(rows.length)} shown of ${here}` : here);
    this.table.show(rows, { keep: isMore });
    this.warn();
  }

  /** Where it first went wrong. */
  warn() {
    const at = this.lines.firstOdd();
    this.alarm.hidden = at === null;
    if (at === null) return;
    const line = this.lines.all[at];
    fill(
      this.alarm,
      el("b", null, `First ${line.odd}: `),
      el("code", null, line.name),
      where(line) && el("span", { class: "soft" }, ` at ${where(line)}`),
      el("span", { class: "spacer" }),
      button("Show it", () => this.showOdd(), { class: "small", title: "n" }),
      button("Open the value", () => this.open(at, true), { class: "small" }),
    );
  }

  showOdd() {
    const at = this.lines.firstOdd();
    if (at === null) return tell("No NaN or Inf is known in this tree.");
    const closed = this.lines.closedAround(at, this.deepest()).map(String);
    const byHand = chosenWords("c");
    const others = byHand.filter((one) => !closed.includes(one));
    set({ q: null, m: null, c: [...others, ...closed.filter((one) => !byHand.includes(one))].join(",") });
    this.table.select(at);
    this.table.reveal(at);
    return undefined;
  }

  /** @param {number} at */
  turn(at) {
    set({ c: turned("c", String(at)) });
  }

  /** A call opens or closes, a value is shown. @param {number} at @param {boolean} [isValue] */
  async open(at, isValue = false) {
    const { row } = this.lines.all[at];
    if (this.lines.isCall(at) && !isValue) return this.turn(at);
    if (row === null) return undefined;
    this.records ||= Records.of(this.run.id, this.signal);
    return go((await this.records).link(row));
  }

  /** @param {number} by */
  beside(by) {
    const at = this.trees.findIndex((/** @type {any} */ one) => one.tree === this.key);
    const next = this.trees[at + by];
    if (next) set({ tree: next.tree, c: null });
  }

  /** Statistics of the lines in sight. @param {number[]} seen */
  async learn(seen) {
    const rows = seen
      .map((at) => this.lines.all[at])
      .filter((line) => line && line.row !== null && !this.known.has(line.row) && line.kind !== "call");
    if (!rows.length) return;
    try {
      const asked = rows.map((line) => line.row).join(",");
      const { columns } = await table(`/api/run/${this.run.id}/stats.bin${query({ rows: asked })}`, {
        signal: this.signal,
      });
      const { row, known, mean, std } = columns;
      row.forEach((one, at) => this.known.set(one, known[at] === 1 ? meanWords(mean[at], std[at]) : ""));
      this.table.draw();
    } catch (error) {
      if (!isAborted(error)) say(this.note, words(error));
    }
  }
}
