// @ts-check
/** @file One run: how it is doing, in a sentence, as a tree of its modules, in curves, and where it comes from. */

import { isAborted, json, onNews, query, real } from "../api.js";
import { el, fill } from "../dom.js";
import { count, moment, plural, size } from "../format.js";
import { words } from "../messages.js";
import { chart } from "../instruments/chart.js";
import { address, remember } from "../url.js";
import { runHeader } from "./run_header.js";
import { health } from "./health.js";
import { ModuleTree } from "./module_tree.js";
import { patchLines } from "./patch.js";

/** @typedef {import("../app.js").Context} Context */

const CURVES = 6;

/** @param {Context} context */
export async function mount({ root, params: [id], frame, signal }) {
  const run = await json(`/api/run/${id}`, { signal });
  runHeader(frame, run, "", signal);
  const wide = el("div", { class: "run-wide" }, summary(run));
  const modules = new Modules(run, signal);
  const curves = el("section", { class: "card", label: "Scalars" });
  fill(
    root,
    el(
      "div",
      { class: "run-page" },
      wide,
      el("div", { class: "run-column" }, modules.card, curves),
      el("div", { class: "run-column" }, provenance(run), patch(run), events(run)),
    ),
  );
  const look = () => Promise.all([modules.load(), renew(wide, run, signal)]);
  // A short run has been looked through before anyone listens.
  modules.load().then(() => renew(wide, run, signal));
  scalars(curves, run, signal);
  onNews("stats", (news) => news.id === run.id && look(), signal);
  return { update: () => modules.tree.draw() };
}

/** Say it again where there is more to say. @param {HTMLElement} wide @param {any} run @param {AbortSignal} signal */
async function renew(wide, run, signal) {
  if (run.health?.known === run.health?.of) return;
  const told = await json(`/api/run/${run.id}`, { signal }).catch(() => null);
  if (!told || told.sentence === run.sentence) return;
  Object.assign(run, { sentence: told.sentence, health: told.health, first_odd: told.first_odd });
  fill(wide, summary(run));
}

/** @param {{count: number, first: number, last: number} | undefined} steps */
function stepsOf(steps) {
  if (!steps?.count) return "0";
  return steps.count > 1 ? `${count(steps.count)} (${steps.first}–${steps.last})` : `1 (${steps.first})`;
}

/** @param {any} run */
function summary(run) {
  const odd = run.first_odd;
  const facts = /** @type {[string, any][]} */ ([
    ["steps", stepsOf(run.steps)],
    ["ranks", count(run.ranks?.length || 1)],
    ["captures", count(run.captures || 0)],
    ["names", count(run.names || 0)],
    ["size", size(run.bytes)],
    ["started", run.started ? moment(run.started) : "–"],
    ["state", run.state],
  ]);
  const where =
    odd && address(`/run/${run.id}/t/${encodeURIComponent(odd.name)}`, { s: odd.step, r: odd.rank || null });
  return el(
    "section",
    { class: "card card-body", label: "Summary" },
    el("h1", { class: `run-sentence ${odd ? "bad" : ""}` }, run.sentence),
    odd &&
      el(
        "p",
        { class: "soft" },
        `The first ${odd.what} is in `,
        el("a", { class: "mono", href: where }, odd.name),
        ` at step ${odd.step}, rank ${odd.rank}.`,
      ),
    (run.problems || []).slice(0, 4).map((/** @type {string} */ one) => el("p", { class: "warn" }, one)),
    el(
      "div",
      { class: "run-numbers" },
      facts.map(([title, value]) => el("dl", null, el("dt", null, title), el("dd", null, value))),
      el("dl", null, el("dt", null, "health"), el("dd", null, health(run.health))),
    ),
    el(
      "div",
      { class: "answer-acts run-acts" },
      el("a", { class: "button primary", href: `/run/${run.id}/captures` }, "Captures"),
      el(
        "a",
        { class: "button", href: `/run/${run.id}/trace` },
        run.has_calls ? "Call tree" : "Values of each step",
      ),
    ),
  );
}

class Modules {
  /** @param {any} run @param {AbortSignal} signal */
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.tree = new ModuleTree(run);
    this.body = el("div", null, this.tree.element);
    const note = "green: no NaN or Inf in what was looked at";
    const titles = ["module", "largest |x|", "captures", "NaN, Inf"].map((text, at) =>
      el("span", { class: at ? "number" : "" }, text),
    );
    this.card = el(
      "section",
      { class: "card", label: "Modules" },
      el("div", { class: "card-head" }, el("h2", null, "Modules"), el("span", { class: "note" }, note)),
      el("div", { class: "tree-row tree-titles", attrs: { "aria-hidden": "true" } }, titles),
      this.body,
    );
  }

  async load() {
    try {
      const { nodes } = await json(`/api/run/${this.run.id}/tree`, { signal: this.signal });
      this.tree.show(nodes);
    } catch (error) {
      if (!isAborted(error)) fill(this.body, el("p", { class: "card-body quiet" }, words(error)));
    }
  }
}

/** @param {HTMLElement} card @param {any} run @param {AbortSignal} signal */
async function scalars(card, run, signal) {
  card.hidden = !run.scalars?.length;
  if (card.hidden) return;
  const host = el("div", { class: "scalars" });
  fill(
    card,
    el(
      "div",
      { class: "card-head" },
      el("h2", null, "Scalars"),
      el("span", { class: "note" }, plural(run.scalars.length, "name")),
    ),
    host,
  );
  for (const scalar of run.scalars.slice(0, CURVES)) {
    const place = el("div", null);
    host.append(place);
    curve(place, run, scalar, signal).catch(
      (error) => isAborted(error) || fill(place, el("p", { class: "quiet" }, words(error))),
    );
  }
}

/** @param {HTMLElement} place @param {any} run @param {any} scalar @param {AbortSignal} signal */
async function curve(place, run, scalar, signal) {
  const { series } = await json(
    `/api/run/${run.id}/scalars${query({ name: scalar.name, kind: scalar.kind })}`,
    { signal },
  );
  const colours = ["a", "b", "good", "bad"];
  const traces = series.slice(0, 8).map((/** @type {any} */ one, /** @type {number} */ at) => ({
    x: one.steps,
    y: one.values.map(real),
    name: series.length > 1 ? `rank ${one.rank}` : scalar.name,
    colour: colours[at % 4],
  }));
  await chart(place, traces, { title: scalar.name, x: "step" }, signal);
}

/** @param {any} run */
function provenance(run) {
  const parts = (run.provenance || []).filter((/** @type {any} */ part) => part.facts.length);
  return el(
    "section",
    { class: "card", label: "Provenance" },
    el("div", { class: "card-head" }, el("h2", null, "Where it comes from")),
    el(
      "div",
      { class: "provenance" },
      parts.map((/** @type {any} */ part, /** @type {number} */ at) => details(part, at < 2)),
      !parts.length && el("p", { class: "quiet" }, "nothing was written beside this run"),
    ),
  );
}

/** @param {{title: string, facts: [string, string][]}} part @param {boolean} isOpen */
function details({ title, facts }, isOpen) {
  const made = el(
    "details",
    null,
    el("summary", { class: "label" }, title, el("span", { class: "quiet" }, `  ${count(facts.length)}`)),
    el(
      "dl",
      { class: "facts" },
      facts.map(([name, value]) => [el("dt", null, name), el("dd", null, value)]),
    ),
  );
  remember(made, "d", title, isOpen);
  return made;
}

/** @param {any} run */
function patch(run) {
  if (!run.patch) return null;
  return el(
    "section",
    { class: "card", label: "Changes to the code" },
    el("div", { class: "card-head" }, el("h2", null, "Changes that were not committed")),
    el("div", { class: "card-body" }, patchLines(run.patch.split("\n"), "Patch")),
  );
}

/** @param {any} run */
function events(run) {
  if (!run.events?.length) return null;
  return el(
    "section",
    { class: "card", label: "Events" },
    el("div", { class: "card-head" }, el("h2", null, "Events")),
    el(
      "ol",
      { class: "events", attrs: { tabindex: 0 } },
      run.events.map((/** @type {any} */ one) =>
        el(
          "li",
          { class: one.what === "problem" ? "warn" : "" },
          el("span", { class: "quiet" }, one.time ? `${moment(one.time).slice(11)}  ` : ""),
          one.text || one.what,
        ),
      ),
    ),
  );
}
