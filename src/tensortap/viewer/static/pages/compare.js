// @ts-check
/** @file Two runs: where they part, what changed between them, and what the difference looks like. */

import { json, onNews, query, table } from "../api.js";
import { el, fill } from "../dom.js";
import { copy, waiting } from "../messages.js";
import { count, quoted, runName } from "../format.js";
import { listen } from "../keys.js";
import { offer } from "../palette.js";
import { chosen, chosenNumber, set } from "../url.js";
import { answer } from "./compare_answer.js";
import { MapCard } from "./compare_map.js";
import { NamesCard } from "./compare_names.js";
import { PairCard } from "./compare_pair.js";
import { PairTable } from "./compare_table.js";
import { Pairs } from "./pairs.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {{c: string, comparison: any, pairs: Pairs, verdicts: string[], frame: import("../frame.js").Frame, signal: AbortSignal}} Told */

const NO_PAIR = "There is no pair to look at. Rules below say which names belong together.";

/** @param {Context} context */
export async function mount({ root, signal, frame }) {
  frame.show({ crumbs: [{ text: "Compare" }], title: "Compare" });
  const done = await compared(root, signal);
  const [pairs, meta] = await Promise.all([
    table(`/api/compare/${done.c}/pairs.bin`, { signal }),
    json("/api/meta", { signal }),
  ]);
  /** @type {Told} */
  const told = {
    c: done.c,
    comparison: done.comparison,
    pairs: new Pairs(pairs),
    verdicts: meta.verdicts,
    frame,
    signal,
  };
  header(told);
  const page = new ComparePage(root, told);
  page.update();
  return page;
}

/**
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
async function compared(root, signal) {
  const wait = waiting("Comparing the two runs…");
  fill(root, wait.element);
  const known = chosen("c");
  const asked = query({ a: chosen("a"), b: chosen("b"), only: chosen("only"), limit: chosen("limit") });
  let job = known
    ? await json(`/api/compare/${known}`, { signal })
    : await json(`/api/compare${asked}`, { signal });
  onNews(
    "compare",
    (news) =>
      news.c === job.c && news.state === "running" && wait.progress(news.done, news.of, progressWords(news)),
    signal,
  );
  while (job.state === "running") {
    wait.progress(job.done, job.of, progressWords(job));
    await news(job.c, signal);
    job = await json(`/api/compare/${job.c}`, { signal });
  }
  if (job.state === "failed") throw new Error(job.text);
  return job.comparison ? job : json(`/api/compare/${job.c}`, { signal });
}

/** @param {{done: number, of: number, text: string}} job */
function progressWords(job) {
  if (job.text) return `${job.text[0].toUpperCase()}${job.text.slice(1)}…`;
  return job.of ? `Comparing: ${count(job.done)} of ${count(job.of)} pairs` : "Comparing the two runs…";
}

/**
 * Until the server says something of it, or half a second has passed.
 * @param {string} c
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function news(c, signal) {
  return new Promise((resolve) => {
    const own = new AbortController();
    const end = () => {
      clearTimeout(timer);
      own.abort();
      resolve();
    };
    const timer = setTimeout(end, 500);
    signal.addEventListener("abort", end, { signal: own.signal });
    onNews("compare", (told) => told.c === c && told.state !== "running" && end(), own.signal);
  });
}

/** @param {Told} told */
function header({ comparison, frame }) {
  const { a, b } = comparison;
  const chip = (/** @type {string} */ letter, /** @type {any} */ run) => ({
    letter,
    text: runName(run.label || run.name),
    title: run.label,
    href: run.id ? `/run/${run.id}` : "/",
  });
  frame.show({
    crumbs: [{ text: "Compare" }],
    chips: [chip("A", a), chip("B", b)],
    title: `${runName(a.label || a.name)} ⇄ ${runName(b.label || b.name)}`,
  });
  const made = [a, b].filter((run) => run.reproduce);
  const which = made.length === 2 ? "both runs" : made[0] === a ? "A" : "B";
  if (made.length)
    frame.canReproduce(
      `Reproduce ${which}`,
      made.map((run) => run.reproduce),
    );
}

class ComparePage {
  /** @param {HTMLElement} root @param {Told} told */
  constructor(root, told) {
    this.told = told;
    this.map = new MapCard(told);
    this.pair = new PairCard(told);
    this.table = new PairTable(told);
    this.names = new NamesCard(told);
    const inspect = () => {
      set({ t: null, k: null, s: null, n: null, i: null, x: null, at: null }, { push: true });
      this.pair.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
      this.pair.element.focus();
    };
    fill(
      root,
      el(
        "div",
        { class: "compare" },
        el("h1", { class: "unseen" }, `${told.comparison.a.name} against ${told.comparison.b.name}`),
        answer(told, inspect),
        told.comparison.pairs
          ? [el("div", { class: "compare-middle" }, this.map.element, this.pair.element), this.table.element]
          : el("p", { class: "card card-body quiet", role: "status" }, NO_PAIR),
        this.names.element,
      ),
    );
    this.keys();
  }

  update() {
    const at = this.selected();
    this.map.update(at);
    this.pair.update(at);
    this.table.update(at);
    this.names.update();
  }

  /** The pair that the address speaks of; else where the runs part. */
  selected() {
    const { pairs, comparison } = this.told;
    const name = chosen("t");
    if (name !== null) {
      const found = pairs.find(
        name,
        chosen("k"),
        chosenNumber("s", 0),
        chosenNumber("r", 0),
        chosenNumber("n", 0),
      );
      if (found !== null) return found;
    }
    return comparison.first?.pair ?? pairs.worst();
  }

  keys() {
    const { pairs, frame, signal } = this.told;
    const step = (/** @type {(at: number) => number | null} */ next) => () => {
      const at = this.selected();
      const to = at === null ? null : next(at);
      if (to !== null) set(pairs.words(to));
    };
    listen(
      [
        { keys: ["j"], help: "next tensor", act: step((at) => pairs.beside(at, 1)) },
        { keys: ["k"], help: "tensor before", act: step((at) => pairs.beside(at, -1)) },
        { keys: ["l"], help: "next step", act: step((at) => pairs.later(at, 1)) },
        { keys: ["h"], help: "step before", act: step((at) => pairs.later(at, -1)) },
        { keys: ["]"], help: "next rank", act: step((at) => pairs.otherRank(at, 1)) },
        { keys: ["["], help: "rank before", act: step((at) => pairs.otherRank(at, -1)) },
        { keys: [" "], help: "play the steps", act: () => this.play() },
        {
          keys: ["1", "2", "3"],
          help: "A, B or their difference alone, and all three again",
          act: (key) => this.pair.focus("abd"[Number(key) - 1]),
        },
        { keys: ["b"], help: "blink between A and B", act: () => this.pair.blink() },
        { keys: ["f"], help: "filter the pairs", act: () => this.table.filter.focus() },
      ],
      signal,
    );
    frame.python = () => this.pair.python();
    offer(
      () =>
        pairs.names().map((name) => ({
          text: name,
          hint: "tensor",
          act: () => set({ t: name, k: null, n: null }, { push: true }),
        })),
      signal,
    );
    offer(
      () => [{ text: "Copy the command that compares these", hint: "share", act: () => this.copyCommand() }],
      signal,
    );
  }

  copyCommand() {
    const { a, b } = this.told.comparison;
    copy(`tensortap compare ${quoted(a.label)} ${quoted(b.label)}`, "The command");
  }

  /** @type {number} */
  playing = 0;

  play() {
    const { pairs, signal } = this.told;
    if (this.playing) return this.pause();
    const next = () => {
      const at = this.selected();
      const to = at === null ? null : pairs.later(at, 1);
      if (to === null) return this.pause();
      return set(pairs.words(to));
    };
    this.playing = setInterval(next, 160);
    signal.addEventListener("abort", () => this.pause());
    return undefined;
  }

  pause() {
    clearInterval(this.playing);
    this.playing = 0;
  }
}
