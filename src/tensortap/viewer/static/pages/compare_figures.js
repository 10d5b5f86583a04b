// @ts-check
/** @file The figures of a pair: how the values are spread, their statistics, the elements that differ most. */

import { isAborted, json, real } from "../api.js";
import { choice, choose, el, fill, say } from "../dom.js";
import { brief, count, number, percent } from "../format.js";
import { Histogram } from "../instruments/histogram.js";
import { Scatter } from "../instruments/scatter.js";
import { ink, onTheme } from "../theme.js";
import { chosen, set } from "../url.js";

/** @typedef {import("./compare.js").Told} Told */

const SHOWN = 8;

export class PairFigures {
  /** @param {Told} told @param {(index: number[]) => void} jump */
  constructor(told, jump) {
    this.told = told;
    this.jump = jump;
    this.base = "";
    /** @type {any[]} */
    this.spreads = [];
    this.loading = new AbortController();
    this.canvas = el("canvas", { class: "hist-canvas", role: "img", label: "Histogram of A and B" });
    this.histogram = new Histogram(this.canvas, told.signal);
    this.cloud = el("canvas", { class: "hist-canvas", role: "img", label: "Elements of A against those of B" });
    this.scatter = new Scatter(this.cloud, told.signal);
    this.scattered = "";
    this.kinds = choice(
      "Figure",
      [
        ["spread", "spread", "how the values of A and B are spread"],
        ["against", "A against B", "each element of A against the same of B; what is equal lies on the line"],
      ],
      "spread",
      (key) => set({ h: key === "spread" ? null : key }),
    );
    this.statistics = el("table", { class: "statistics", label: "Statistics" });
    this.worst = el("ol", { class: "worst" });
    this.symptoms = el("p", { class: "symptoms" });
    this.element = el(
      "div",
      null,
      this.symptoms,
      el(
        "div",
        { class: "figures" },
        el(
          "div",
          { class: "figure" },
          el(
            "h3",
            { class: "label" },
            "Values of ",
            el("span", { class: "side-a" }, "A"),
            " and ",
            el("span", { class: "side-b" }, "B"),
          ),
          this.kinds,
          this.canvas,
          this.cloud,
        ),
        el("div", { class: "figure" }, this.statistics),
        el("div", { class: "figure" }, el("h3", { class: "label" }, "Worst elements"), this.worst),
      ),
    );
    onTheme(() => this.draw(), told.signal);
  }

  /** @param {string} base @param {any} facts */
  async show(base, facts) {
    this.base = base;
    this.loading.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    this.choose();
    fill(this.statistics, statistics(facts));
    // Of the first difference the top of the page tells it.
    const isSaid = !facts.symptoms?.length || facts.pair === this.told.comparison.first?.pair;
    say(this.symptoms, isSaid ? "" : `The difference: ${facts.symptoms.join("; ")}.`);
    this.symptoms.hidden = isSaid;
    try {
      const [top, apart, ...spreads] = await Promise.all([
        json(`${base}/top?side=d&k=${SHOWN}`, { signal }),
        json(`${base}/hist?side=d&bins=2`, { signal }),
        json(`${base}/hist?side=a&bins=56`, { signal }),
        json(`${base}/hist?side=b&bins=56`, { signal }),
      ]);
      if (base !== this.base) return;
      this.spreads = spreads;
      this.draw();
      this.share(apart);
      fill(
        this.worst,
        top.elements
          .filter((/** @type {any} */ one) => real(one.value) !== 0)
          .map((/** @type {any} */ one) => this.entry(one)),
      );
      if (!this.worst.childElementCount) fill(this.worst, el("li", { class: "quiet" }, "no element differs"));
    } catch (error) {
      if (!isAborted(error)) throw error;
    }
  }

  /** As the address says. */
  choose() {
    const isCloud = chosen("h") === "against";
    choose(this.kinds, isCloud ? "against" : "spread");
    this.canvas.hidden = isCloud;
    this.cloud.hidden = !isCloud;
    if (isCloud && this.base && this.scattered !== this.base) this.scatterAll();
  }

  async scatterAll() {
    const { base } = this;
    this.scattered = base;
    try {
      const { a, b } = await json(`${base}/scatter`, { signal: this.loading.signal });
      if (base === this.base) this.scatter.show(a.map(real), b.map(real));
    } catch (error) {
      if (!isAborted(error)) throw error;
      this.scattered = "";
    }
  }

  draw() {
    const [a, b] = this.spreads;
    if (!a || !b) return;
    this.histogram.show([
      { edges: a.edges.map(real), counts: a.counts, colour: ink("a"), label: "A", isFilled: true },
      { edges: b.edges.map(real), counts: b.counts, colour: ink("b"), label: "B" },
    ]);
  }

  /** How many elements differ at all. @param {any} apart */
  share(apart) {
    const line = /** @type {HTMLElement | null} */ (this.statistics.querySelector("[data-share]"));
    if (!line || !apart.looked) return;
    const differing = apart.looked - apart.zero;
    line.hidden = false;
    say(
      /** @type {HTMLElement} */ (line.lastElementChild),
      `${count(differing)} / ${count(apart.looked)} (${percent(differing / apart.looked)})`,
    );
  }

  /** @param {any} one */
  entry(one) {
    return el(
      "li",
      null,
      el(
        "button",
        { type: "button", title: "show it", on: { click: () => this.jump(one.index) } },
        el("span", { class: "soft" }, `[${one.index.join(",")}]`),
        el("span", { class: "side-a" }, brief(real(one.a))),
        el("span", { class: "side-b" }, brief(real(one.b))),
        el("span", { class: "bad" }, brief(real(one.value))),
      ),
    );
  }
}

/** @param {any} facts */
function statistics({ a, b, metrics }) {
  const head = el(
    "thead",
    null,
    el(
      "tr",
      null,
      el("th", { attrs: { scope: "col" } }, el("span", { class: "unseen" }, "statistic")),
      el("th", { class: "side-a", attrs: { scope: "col" } }, "A"),
      el("th", { class: "side-b", attrs: { scope: "col" } }, "B"),
      el("th", { attrs: { scope: "col" } }, "Δ"),
    ),
  );
  const rows = ["mean", "std", "min", "max", "norm", "nan", "inf"].flatMap((key) => {
    const [one, other] = [a.statistics?.[key], b.statistics?.[key]];
    if (one === undefined || one === null || other === undefined || other === null) return [];
    if ((key === "nan" || key === "inf") && !one && !other) return [];
    const apart = real(other) - real(one);
    return [
      row(key === "norm" ? "L2 norm" : key, number(one), number(other), apart === 0 ? "0" : number(apart)),
    ];
  });
  return [
    head,
    el(
      "tbody",
      null,
      rows,
      metrics && !metrics.is_identical ? measured(metrics) : wide("differ", "no element"),
    ),
  ];
}

/** @param {any} metrics */
function measured(metrics) {
  const ulps = Number.isFinite(real(metrics.ulp)) ? ` (${brief(real(metrics.ulp))} ULP)` : "";
  return [
    wide("relative L2", number(metrics.relative_l2)),
    wide("max |Δ|", number(metrics.max_abs) + ulps),
    wide("1 − cos", number(metrics.cosine_distance)),
    el(
      "tr",
      { hidden: true, data: { share: "" } },
      el("th", { attrs: { scope: "row" } }, "differ"),
      el("td", { attrs: { colspan: 3 } }),
    ),
  ];
}

/** @param {string} title @param {...string} values */
function row(title, ...values) {
  return el(
    "tr",
    null,
    el("th", { attrs: { scope: "row" } }, title),
    values.map((one) => el("td", null, one)),
  );
}

/** @param {string} title @param {string} value */
function wide(title, value) {
  return el(
    "tr",
    null,
    el("th", { attrs: { scope: "row" } }, title),
    el("td", { attrs: { colspan: 3 } }, value),
  );
}
