// @ts-check
/** @file What was compared with what: coverage, names on one side only, and rules that pair them. */

import { isAborted, json } from "../api.js";
import { button, el, fill, longName } from "../dom.js";
import { count, middle, plural, shape as shapeWords } from "../format.js";
import { copy, tell, words } from "../messages.js";
import { chosen, go, set } from "../url.js";

/** @typedef {import("./compare.js").Told} Told */

export class NamesCard {
  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    this.isAsked = false;
    this.rules = el("textarea", {
      class: "field rules",
      label: "Rules as TOML",
      attrs: { rows: 9, spellcheck: "false" },
    });
    this.body = el("div", { class: "names-body", hidden: true });
    this.opener = el(
      "button",
      {
        type: "button",
        class: "button small",
        attrs: { "aria-expanded": "false" },
        on: { click: () => this.turn() },
      },
      "Names and rules",
    );
    this.element = el(
      "section",
      { class: "card names-card", label: "Coverage and names" },
      el(
        "div",
        { class: "card-head" },
        el("h2", null, "Coverage"),
        el("span", { class: "note grow clip" }, summary(told.comparison)),
        this.opener,
      ),
      gaps(told.comparison),
      this.body,
    );
  }

  /** Where nothing has a partner, names are what there is to see. */
  isOpenAtFirst() {
    return !this.told.comparison.pairs;
  }

  isOpen() {
    return chosen("m") === null ? this.isOpenAtFirst() : chosen("m") === "1";
  }

  turn() {
    const next = !this.isOpen();
    set({ m: next === this.isOpenAtFirst() ? null : Number(next) }, { push: true });
  }

  async update() {
    const isOpen = this.isOpen();
    this.body.hidden = !isOpen;
    this.opener.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen || this.isAsked) return;
    this.isAsked = true;
    try {
      this.show(await json(`/api/compare/${this.told.c}/names`, { signal: this.told.signal }));
    } catch (error) {
      if (!isAborted(error)) fill(this.body, el("p", { class: "bad" }, words(error)));
    }
  }

  /** @param {any} names */
  show(names) {
    this.rules.value = names.rules || "";
    const how = Object.entries(names.how)
      .filter(([, n]) => n)
      .map(([way, n]) => `${count(/** @type {number} */ (n))} by ${way}`)
      .join(", ");
    fill(
      this.body,
      el(
        "p",
        { class: "soft" },
        `${how ? `Paired ${how}.` : "Nothing was paired."} Drag a name of A onto one of B to pair them by a rule.`,
      ),
      el(
        "div",
        { class: "names" },
        this.side("a", names.only_a),
        this.side("b", names.only_b),
        this.proposals(names),
        this.editor(names),
      ),
    );
  }

  /** @param {any} names */
  proposals(names) {
    const pairs = [...names.guesses, ...names.near];
    const isPaired = Object.keys(names.how).length > 0;
    const line = (/** @type {any} */ one) =>
      el(
        "li",
        null,
        el("span", { class: "side-a clip", title: one.a }, middle(one.a, 34)),
        el("span", { class: "quiet" }, "→"),
        el("span", { class: "side-b clip", title: one.b }, middle(one.b, 34)),
        one.how
          ? el(
              "span",
              { class: "quiet" },
              `${one.how}${one.score < 1 ? ` ${Number(one.score).toFixed(2)}` : ""}`,
            )
          : button("pair", () => this.add(one), { class: "small" }),
      );
    return el(
      "div",
      null,
      el("h3", { class: "label" }, "Proposed pairs"),
      pairs.length
        ? el("ul", { class: "name-list", attrs: { tabindex: 0 } }, pairs.map(line))
        : el("p", { class: "quiet" }, isPaired ? "none: names alone told what belongs together" : "none"),
    );
  }

  /** @param {{a: string, b: string}} pair */
  add({ a, b }) {
    const rule = `[[rule]]\nfrom = ${JSON.stringify(a)}\nto = ${JSON.stringify(b)}\n`;
    this.rules.value = `${this.rules.value.trimEnd()}\n\n${rule}`.trimStart();
  }

  /** Names of one side; one of A that is dropped on one of B makes a rule. @param {"a" | "b"} letter @param {any[]} names */
  side(letter, names) {
    const list = el(
      "ul",
      { class: "name-list", attrs: { tabindex: 0 } },
      names.map((one) => this.entry(letter, one)),
    );
    const title = `Only in ${letter.toUpperCase()} (${count(names.length)})`;
    return el(
      "div",
      null,
      el("h3", { class: `label side-${letter}` }, title),
      names.length ? list : el("p", { class: "quiet" }, "none"),
    );
  }

  dragged = "";

  /** @param {"a" | "b"} letter @param {any} one */
  entry(letter, one) {
    const drop = (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      if (this.dragged) this.add({ a: this.dragged, b: one.name });
    };
    const source = { dragstart: () => (this.dragged = one.name) };
    const target = { dragover: (/** @type {DragEvent} */ event) => event.preventDefault(), drop };
    return el(
      "li",
      {
        class: `is-${letter}`,
        attrs: letter === "a" ? { draggable: "true" } : {},
        on: letter === "a" ? source : target,
      },
      longName(one.name),
      el("span", { class: "spacer" }),
      el("span", { class: "quiet" }, `${one.kind} ${shapeWords(one.shape || [])} ×${one.count}`),
    );
  }

  /** @param {any} names */
  editor(names) {
    return el(
      "div",
      null,
      el("h3", { class: "label" }, "Rules (TOML)"),
      this.rules,
      el(
        "div",
        { class: "answer-acts" },
        button("Compare again", () => this.again({}), { class: "primary" }),
        button("Copy", () => copy(this.rules.value, "The rules")),
        names.can_save && button("Save as map.toml", () => this.again({ save: "map.toml" })),
      ),
    );
  }

  /** @param {{save?: string}} more */
  async again(more) {
    try {
      const { c } = await json(`/api/compare/${this.told.c}/rules`, {
        post: { toml: this.rules.value, ...more },
      });
      go(`/compare?c=${c}`);
    } catch (error) {
      tell(words(error), { isBad: true });
    }
  }
}

/** @param {any} comparison */
function summary({ coverage, floor }) {
  const noise = floor?.is_measured
    ? `noise measured from ${floor.twins.join(", ")}`
    : "noise is what is usual for the number type: tt.floor(model, batch) measures it";
  return `${plural(coverage.pairs, "pair")} · ${coverage.is_whole ? "nothing was left out" : "not all was compared"} · ${noise}`;
}

/** @param {any} comparison */
function gaps({ coverage, notes }) {
  const parts = /** @type {[string, any][]} */ ([
    ["only in A", coverage.only_a],
    ["only in B", coverage.only_b],
    ["behind near ties", coverage.behind_ties],
    ["objects without numbers", coverage.opaque],
    ["left out by a rule", coverage.ignored],
  ])
    .filter(([, n]) => n)
    .map(([what, n]) => el("span", { class: "gap" }, el("b", null, count(n)), ` ${what}`));
  const told = [...coverage.unreadable, ...coverage.unaligned, ...coverage.problems, ...(notes || [])];
  if (!parts.length && !told.length) return null;
  return el(
    "div",
    { class: "gaps" },
    parts,
    told.slice(0, 6).map((one) => el("p", { class: "warn" }, one)),
    told.length > 6 && el("p", { class: "quiet" }, `and ${count(told.length - 6)} more`),
  );
}
