// @ts-check
/** @file The box for queries: what it finds is asked for with each key, and what it does not understand it shows. */

import { ApiError, isAborted, json, table } from "./api.js";
import { el, fill, say } from "./dom.js";
import { show } from "./keys.js";
import { words } from "./messages.js";
import { chosen, set } from "./url.js";

export class Filter {
  /**
   * @param {{placeholder: string, label: string, isOfPairs?: boolean, rows: (text: string) => string, onAsk?: () => void, onFound: (found: import("./api.js").Table) => void, signal: AbortSignal}} what
   */
  constructor(what) {
    this.what = what;
    this.asking = new AbortController();
    this.asked = "";
    this.input = el("input", {
      class: "field filter",
      type: "search",
      label: what.label,
      attrs: {
        placeholder: what.placeholder,
        autocomplete: "off",
        spellcheck: "false",
        "aria-describedby": "filter-problem",
      },
      on: {
        input: () => set({ q: this.input.value }),
        keydown: (event) => event.key === "Escape" && this.input.blur(),
      },
    });
    this.problem = el("span", { class: "bad clip", id: "filter-problem", role: "status" });
    this.help = el(
      "button",
      {
        type: "button",
        class: "icon-button small-icon",
        label: "The query language",
        title: "the query language",
        on: { click: () => this.explain() },
      },
      "?",
    );
    this.element = el("div", { class: "filter-box" }, this.input, this.help, this.problem);
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  update() {
    const text = chosen("q") || "";
    if (document.activeElement !== this.input) this.input.value = text;
    const address = this.what.rows(text);
    if (address === this.asked) return;
    this.asked = address;
    this.what.onAsk?.();
    this.ask(address, text);
  }

  /** Ask again, after what there is has grown. */
  again() {
    this.asked = "";
    this.update();
  }

  /** @param {string} address @param {string} text */
  async ask(address, text) {
    this.asking.abort();
    this.asking = new AbortController();
    const signal = AbortSignal.any([this.asking.signal, this.what.signal]);
    try {
      this.found(await table(address, { signal }));
      this.complain("");
    } catch (error) {
      if (isAborted(error)) return;
      const at =
        error instanceof ApiError && error.at !== null
          ? ` (at “${text.slice(error.at, error.at + 12)}”)`
          : "";
      this.complain(words(error) + at);
      // What was seen before stays; at first that is everything.
      if (!this.hasFound) table(this.what.rows(""), { signal }).then((all) => this.found(all), () => {});
    }
  }

  hasFound = false;

  /** @param {import("./api.js").Table} rows */
  found(rows) {
    this.hasFound = true;
    this.what.onFound(rows);
  }

  /** @param {string} text */
  complain(text) {
    say(this.problem, text);
    this.problem.title = text;
    this.input.setAttribute("aria-invalid", String(Boolean(text)));
  }

  async explain() {
    const { fields } = await json("/api/query/help");
    const foreign = this.what.isOfPairs ? "of runs:" : "of ";
    const own = fields.filter((/** @type {any} */ one) => !one.what.startsWith(foreign));
    const list = el("dl", { class: "keys is-wide" });
    fill(
      list,
      own.map((/** @type {any} */ one) => [
        el("dt", null, el("code", null, one.example)),
        el("dd", { class: "soft" }, one.what),
      ]),
    );
    show(
      el(
        "dialog",
        { class: "sheet", label: "The query language" },
        el("h2", null, "The query language"),
        el(
          "p",
          { class: "soft query-rules" },
          "Words are part of a name. All terms must hold; a|b is either, -term is not, (…) is a group. The same language works on the command line and in Python.",
        ),
        list,
        el("form", { attrs: { method: "dialog" } }, el("button", { class: "button" }, "Close")),
      ),
    );
  }
}
