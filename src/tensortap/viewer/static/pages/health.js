// @ts-check
/** @file How healthy a run is: in words, and over its steps. */

import { el, svg } from "../dom.js";
import { count } from "../format.js";

/** Records with NaN or Inf over the steps. @param {any} told */
export function health(told) {
  if (!told?.known)
    return el("span", { class: "quiet", title: "its values are looked through once it is opened" }, "not looked at");
  const { odd } = told;
  if (!odd)
    return el(
      "span",
      { class: "good", title: `${count(told.known)} of ${count(told.of)} looked at` },
      "no NaN, no Inf",
    );
  const counts = [told.nan && `${count(told.nan)} NaN`, told.inf && `${count(told.inf)} Inf`];
  const words = el("span", { class: "bad" }, `${counts.filter(Boolean).join(" ")} `);
  const title = `${count(odd)} of ${count(told.known)} records: ${count(told.nan)} with NaN, ${count(told.inf)} with Inf`;
  if (told.spark.length < 2) return el("span", { title }, words);
  const most = Math.max(...told.spark, 1);
  const wide = Math.min(96 / told.spark.length, 8);
  const bars = told.spark.map((/** @type {number} */ n, /** @type {number} */ at) =>
    svg("rect", {
      x: at * wide,
      y: 20 - Math.max((n / most) * 18, n ? 2 : 1),
      width: Math.max(wide - 1, 1),
      height: Math.max((n / most) * 18, n ? 2 : 1),
      fill: n ? "var(--bad)" : "var(--line)",
    }),
  );
  return el(
    "span",
    { title },
    words,
    svg(
      "svg",
      { class: "spark", viewBox: "0 0 96 20", role: "img", "aria-label": `${odd} records with NaN or Inf` },
      bars,
    ),
  );
}
