// @ts-check
/** @file All runs below the roots, and the jobs that are running. */

import { ApiError, isAborted, json, onNews, query } from "../api.js";
import { button, el, fill, say } from "../dom.js";
import { ago, count, moment, plural, size } from "../format.js";
import { words } from "../messages.js";
import { listen } from "../keys.js";
import { address, chosen, chosenWords, go, set, turned } from "../url.js";
import { health } from "./health.js";

/** @typedef {import("../app.js").Context} Context */

/** @param {Context} context */
export async function mount(context) {
  context.frame.show({ crumbs: [{ text: "Runs" }], title: "Runs" });
  const page = new RunsPage(context);
  await page.update();
  onNews("runs", () => page.load(), context.signal);
  onNews("stats", () => page.loadSoon(), context.signal);
  return page;
}

class RunsPage {
  /** @param {Context} context */
  constructor({ root, signal }) {
    this.root = root;
    this.signal = signal;
    this.asked = "";
    this.input = el("input", {
      class: "field filter",
      type: "search",
      label: "Search the runs",
      attrs: {
        placeholder: "search:  llama state:finished since:2h",
        autocomplete: "off",
        spellcheck: "false",
      },
      on: { input: () => set({ q: this.input.value }) },
    });
    this.problem = el("span", { class: "bad clip", role: "status" });
    this.note = el("span", { class: "note" });
    this.compareButton = button("Compare", () => this.compare(), { class: "primary", disabled: true });
    this.body = el("div", { class: "runs-table" });
    this.card = el(
      "section",
      { class: "card", label: "Runs" },
      el(
        "div",
        { class: "card-head" },
        el("h1", { class: "unseen" }, "Runs"),
        el("h2", null, "Runs"),
        this.note,
        el("div", { class: "filter-box" }, this.input, this.problem),
        this.compareButton,
      ),
      this.body,
    );
    listen([{ keys: ["f"], help: "search the runs", act: () => this.input.focus() }], signal);
  }

  async update() {
    const text = chosen("q") || "";
    if (document.activeElement !== this.input) this.input.value = text;
    this.mark();
    if (this.asked === `q${text}`) return;
    this.asked = `q${text}`;
    await this.load();
  }

  waiting = 0;

  /** Much may be found out at once. */
  loadSoon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.signal.aborted || this.load(), 250);
  }

  async load() {
    const text = chosen("q") || "";
    try {
      const found = await json(`/api/runs${query({ q: text })}`, { signal: this.signal });
      this.complain("");
      if (found.runs.length || found.jobs.length || text) this.show(found);
      else await this.showEmpty();
    } catch (error) {
      if (isAborted(error)) return;
      if (!(error instanceof ApiError && error.kind === "query")) throw error;
      this.complain(words(error));
    }
  }

  /** @param {string} text */
  complain(text) {
    say(this.problem, text);
    this.input.setAttribute("aria-invalid", String(Boolean(text)));
  }

  /** @param {{runs: any[], jobs: any[]}} found */
  show({ runs, jobs }) {
    if (this.root.firstChild !== this.card) fill(this.root, this.card);
    const bytes = runs.reduce((sum, run) => sum + (run.bytes || 0), 0);
    say(this.note, `${plural(runs.length, "run")} · ${size(bytes)}`);
    const head = [
      "",
      "state",
      "run",
      "command",
      "commit",
      "started",
      "steps",
      "captures",
      "size",
      "health",
      "tags",
    ];
    const isRight = ["steps", "captures", "size"];
    fill(
      this.body,
      el(
        "table",
        { class: "table" },
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            head.map((one) =>
              el(
                "th",
                { class: isRight.includes(one) ? "number" : "", attrs: { scope: "col" } },
                one || el("span", { class: "unseen" }, "choose"),
              ),
            ),
          ),
        ),
        el(
          "tbody",
          null,
          jobs.map(jobRow),
          runs.map((run) => this.row(run)),
        ),
      ),
    );
    if (!runs.length && !jobs.length)
      this.body.append(el("p", { class: "quiet card-body" }, "No run is like that."));
  }

  /** @param {any} run */
  row(run) {
    // Of a damaged run, what can be read is shown.
    const isGood = run.state !== "damaged" || run.captures > 0;
    const box = el("input", {
      type: "checkbox",
      label: `choose ${run.name}`,
      disabled: !isGood,
      data: { run: run.id },
      on: { change: () => set({ pick: turned("pick", run.id) }) },
    });
    box.checked = chosenWords("pick").includes(run.id);
    const open = (/** @type {MouseEvent} */ event) => {
      if (isGood && event.target instanceof Element && !event.target.closest("input, a"))
        go(`/run/${run.id}`);
    };
    return el(
      "tr",
      { class: isGood ? "tr-link" : "", on: { click: open } },
      el("td", null, box),
      el("td", null, state(run)),
      el(
        "td",
        { class: "run clip", title: run.path },
        el("span", { class: "mono soft" }, run.folder ? `${run.folder}/` : ""),
        isGood
          ? el("a", { class: "mono", href: `/run/${run.id}`, title: run.path }, run.name)
          : el("span", { class: "mono" }, run.name),
      ),
      el(
        "td",
        { class: "command clip mono soft", title: run.command || run.problem || "" },
        run.problem || run.command || "–",
      ),
      el(
        "td",
        { class: "mono soft" },
        (run.commit || "–").slice(0, 8),
        run.dirty ? el("span", { class: "warn", title: "with changes that were not committed" }, " ●") : "",
      ),
      el(
        "td",
        { class: "soft", title: run.started ? moment(run.started) : "" },
        run.started ? ago(run.started) : "–",
      ),
      el("td", { class: "number" }, count(run.steps?.count || 0)),
      el("td", { class: "number" }, count(run.captures || 0)),
      el("td", { class: "number" }, size(run.bytes)),
      el("td", null, health(run.health)),
      el(
        "td",
        null,
        Object.entries(run.tags || {}).map(([key, value]) => el("span", { class: "tag" }, `${key}=${value}`)),
      ),
    );
  }

  /** Runs are chosen in an order: the first is A. */
  mark() {
    const picked = chosenWords("pick");
    for (const box of this.body.querySelectorAll("input"))
      box.checked = picked.includes(box.dataset.run || "");
    this.compareButton.toggleAttribute("disabled", picked.length !== 2);
    say(this.compareButton, picked.length === 1 ? "Compare with…" : "Compare");
  }

  compare() {
    const [a, b] = chosenWords("pick");
    go(address("/compare", { a, b }));
  }

  async showEmpty() {
    const meta = await json("/api/meta", { signal: this.signal });
    fill(
      this.root,
      el(
        "section",
        { class: "empty" },
        el("h1", null, "No runs here yet"),
        el(
          "p",
          { class: "soft" },
          `Looking in ${meta.roots.join(", ") || "no folder"}. This page fills by itself as soon as something is recorded:`,
        ),
        el("pre", null, meta.quick_start),
      ),
    );
  }
}

/** @param {any} job */
function jobRow(job) {
  return el(
    "tr",
    { class: "tr-link", on: { click: () => go(`/live/${job.id}`) } },
    el("td", null),
    el("td", null, el("span", { class: "state good" }, el("span", { class: "dot is-live" }), "running")),
    el("td", null, el("a", { class: "mono", href: `/live/${job.id}` }, job.name || job.program)),
    el("td", { class: "command clip mono soft", title: job.program }, job.program),
    el("td", { class: "quiet" }, `pid ${job.pid}`),
    el("td", { class: "soft" }, job.started ? ago(job.started) : "–"),
    el("td", { attrs: { colspan: 5 }, class: "quiet" }, plural(job.world || job.ranks?.length || 1, "rank")),
  );
}

/** @param {any} run */
function state(run) {
  const tones = /** @type {Record<string, string>} */ ({
    writing: "good",
    damaged: "bad",
    "cut off": "warn",
  });
  const dot = run.state === "writing" ? "is-live" : run.state === "damaged" ? "is-lost" : "";
  return el(
    "span",
    { class: `state ${tones[run.state] || "soft"}` },
    el("span", { class: `dot ${dot}` }),
    run.state,
  );
}
