// @ts-check
/** @file Pairs that are no pictures: single numbers, text, and what cannot be laid side by side. */

import { real } from "../api.js";
import { el } from "../dom.js";
import { dtype, precise, shape as shapeWords } from "../format.js";

/** @param {any} facts */
export function plainPair(facts) {
  const side = (/** @type {"a" | "b"} */ one) =>
    el(
      "div",
      null,
      el("div", { class: `label side-${one}` }, one.toUpperCase()),
      el("pre", { class: "plain" }, facts[one]?.text || facts[one]?.problem || typeWords(facts[one])),
    );
  return [
    el("div", { class: "pair-plain" }, side("a"), side("b")),
    el("pre", { class: "plain" }, facts.story || ""),
  ];
}

/** @param {any} facts */
export function singleNumbers({ a, b }) {
  const [one, other] = [a, b].map((side) => real(side.value));
  const shown = /** @type {[string, string, number][]} */ ([
    ["A", "side-a", one],
    ["B", "side-b", other],
    ["B − A", "", other - one],
  ]);
  return el(
    "dl",
    { class: "singles" },
    shown.map(([title, tone, value]) =>
      el("div", null, el("dt", { class: tone }, title), el("dd", null, precise(value))),
    ),
  );
}

/** @param {any} value */
function typeWords(value) {
  return value ? `${value.type} ${dtype(value.dtype || "")}${shapeWords(value.shape || [])}` : "not recorded";
}

/** @param {string} verdict */
export function tone(verdict) {
  if (verdict === "identical" || verdict === "within noise") return "good";
  return verdict === "healed" || verdict === "tie" ? "warn" : "bad";
}
