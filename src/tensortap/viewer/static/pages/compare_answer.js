// @ts-check
/** @file The answer, before anything is asked: the sentence, what changed, the shape of the error. */

import { json, real } from "../api.js";
import { button, el, fill } from "../dom.js";
import { count, middle, number, percent } from "../format.js";
import { copy } from "../messages.js";
import { patchLines } from "./patch.js";
import { remember } from "../url.js";

/** @typedef {import("./compare.js").Told} Told */
/** @typedef {[string, (Node | string)[]]} Line */

const FEW_LINES = 6;

/** @param {Told} told @param {() => void} inspect */
export function answer(told, inspect) {
  return el("div", { class: "answer" }, sentence(told, inspect), changes(told), form(told));
}

/** @param {Told} told @param {() => void} inspect */
function sentence({ c, comparison }, inspect) {
  const { first } = comparison;
  const site = first?.site
    ? button(middle(first.site.split("/").pop(), 24), () => copy(first.site, "The call site"), {
        title: `copy ${first.site}`,
      })
    : null;
  return el(
    "section",
    { class: "card answer-card", label: "The answer" },
    el("div", { class: "label" }, first ? "First difference" : "The answer"),
    headline(comparison),
    el("p", { class: "soft answer-sentence", attrs: { tabindex: 0 } }, withCode(comparison.sentence)),
    el(
      "div",
      { class: "answer-acts" },
      comparison.pairs > 0 && button(first ? "Inspect" : "Look at a pair", inspect, { class: "primary" }),
      site,
      el(
        "a",
        {
          class: "button",
          href: `/api/compare/${c}/export.html`,
          attrs: { download: "" },
          title: "one file, to send to somebody",
        },
        "Save as HTML",
      ),
    ),
  );
}

/** @param {any} comparison */
function headline({ first, state, headline: text }) {
  if (first) {
    return el(
      "p",
      { class: "headline" },
      "step ",
      el("b", { class: "bad mono" }, first.step),
      " at ",
      el("b", { class: "bad mono", title: first.name }, middle(first.name, 64)),
      first.class_name && el("span", { class: "quiet headline-class" }, first.class_name),
    );
  }
  const tone = state === "same" ? "good" : "warn";
  const words = /** @type {Record<string, string>} */ ({
    same: "No difference beyond noise",
    incomplete: "Not all could be compared",
    nothing: "Nothing to compare",
  });
  return el("p", { class: "headline", title: text }, el("b", { class: tone }, words[state] || text));
}

/** Names between back quotes are set as code. @param {string} text */
function withCode(text) {
  return (text || "").split("`").map((part, at) => (at % 2 ? el("code", null, part) : part));
}

/** @param {Told} told */
function changes({ comparison }) {
  const differs = comparison.gate.filter((/** @type {any} */ one) => one.state === "differs");
  const isCode = (/** @type {any} */ one) => one.what === "code" && comparison.changes.length > 0;
  const lines = [...differs.filter(isCode), ...differs.filter((/** @type {any} */ one) => !isCode(one))].map(
    (/** @type {any} */ one) => [
      el("dt", null, one.what),
      isCode(one)
        ? el("dd", null, codeWords(one, comparison.changes), files(comparison.changes))
        : el("dd", { title: one.text }, changed(textOf(one), one.names || [])),
    ],
  );
  const others = /** @type {[string, string, string][]} */ ([
    ["equal", "same", "good"],
    ["unknown", "not recorded", "quiet"],
  ]);
  for (const [state, title, tone] of others) {
    const these = comparison.gate.filter((/** @type {any} */ one) => one.state === state);
    if (!these.length) continue;
    const names = these.map((/** @type {any} */ one) => one.what).join(", ");
    lines.push([
      el("dt", null, title),
      el("dd", { class: tone, title: these.map((/** @type {any} */ one) => one.text).join("\n") }, names),
    ]);
  }
  const suspects = (comparison.suspects || [])
    .slice(0, 3)
    .map((/** @type {any} */ one) => [el("dt", { class: "bad" }, "suspect"), el("dd", null, one.text)]);
  return el(
    "section",
    { class: "card answer-card", label: "What changed between A and B" },
    el("div", { class: "label" }, "What changed between A and B"),
    el("dl", { class: "facts answer-facts", attrs: { tabindex: 0 } }, suspects, lines),
  );
}

/** @param {any} one */
function textOf(one) {
  return one.text.replace(`${one.what}: `, "");
}

/** What differs besides the files whose lines are shown. @param {any} one @param {any[]} changes */
function codeWords(one, changes) {
  const shown = new Set(changes.map(({ file }) => file));
  const isAllShown = one.names.every((/** @type {string} */ name) => shown.has(name.replace(/^files\./, "")));
  return isAllShown ? null : el("span", { title: one.text }, changed(textOf(one), one.names));
}

/** The lines of code that differ, without those around; of one small change they are open. @param {any[]} changes */
function files(changes) {
  return changes.map(({ file, where, added, removed, hunks }, at) => {
    const counts = added || removed ? ` +${added} −${removed}` : "";
    const lines = hunks.filter((/** @type {string} */ line) => !line.startsWith(" "));
    const made = /** @type {HTMLDetailsElement} */ (
      el(
        "details",
        null,
        el("summary", null, `${file}${counts}, ${where}`),
        patchLines(outdented(lines), `Lines of ${file}`),
      )
    );
    const isOpen = changes.length === 1 && lines.length <= FEW_LINES;
    remember(made, "d", String(at), isOpen);
    return made;
  });
}

/** Without the spaces that all of them begin with, behind the sign. @param {string[]} lines */
function outdented(lines) {
  const isCode = (/** @type {string} */ line) => /^[+-]/.test(line) && line.slice(1).trim() !== "";
  const widths = lines.filter(isCode).map((line) => line.slice(1).search(/[^ ]/));
  const least = widths.length ? Math.min(...widths) : 0;
  return lines.map((line) => (/^[+-]/.test(line) ? line[0] + line.slice(1 + least) : line));
}

/**
 * "name old -> new" in the two colours of a change.
 * @param {string} text
 * @param {string[]} names what changed, by name
 */
function changed(text, names) {
  return text.split(", ").flatMap((part, at) => {
    const before = at > 0 ? ", " : "";
    const [old, now] = part.split(" -> ");
    if (now === undefined) return [before + part];
    const name = names.find((one) => old.includes(`${one} `));
    const end = name ? old.indexOf(`${name} `) + name.length + 1 : old.lastIndexOf(" ") + 1;
    const was = el("span", { class: "was" }, old.slice(end));
    return [before + old.slice(0, end), was, " → ", el("span", { class: "now" }, now)];
  });
}

/** @param {Told} told */
function form(told) {
  const facts = el("dl", { class: "facts answer-facts", attrs: { tabindex: 0 } });
  const { first } = told.comparison;
  if (first && first.pair !== null) describe(told, facts, first);
  else fill(facts, rows(overall(told.comparison)));
  return el(
    "section",
    { class: "card answer-card", label: "Shape of the error" },
    el("div", { class: "label" }, first ? "Shape of the error" : "What was compared"),
    facts,
  );
}

/** @param {Told} told @param {HTMLElement} facts @param {any} first */
async function describe({ c, comparison, signal }, facts, first) {
  const base = `/api/compare/${c}/pair/${first.pair}`;
  const pair = await json(base, { signal }).catch(() => null);
  if (!pair) return fill(facts, rows(overall(comparison)));
  const isArray = pair.a?.is_array && pair.b?.is_array && !pair.metrics?.reason;
  const spread = isArray ? await json(`${base}/hist?side=d&bins=2`, { signal }).catch(() => null) : null;
  const lines = pair.metrics ? measured(pair.metrics, spread) : [];
  if (pair.symptoms?.length) lines.unshift(["looks like", [pair.symptoms.join("; ")]]);
  const noise = first.ratio === "inf" ? "beyond any noise" : `${number(first.ratio)} times its noise`;
  lines.push([
    "noise",
    [noise + (first.axis && first.axis !== "whole" ? `, in its worst ${first.axis}` : "")],
  ]);
  if (comparison.growth?.text) lines.push(["growth", [comparison.growth.text]]);
  const isSaid = comparison.sentence?.toLowerCase().includes((first.note || "").toLowerCase());
  if (first.note && !isSaid) lines.push(["note", [first.note]]);
  return fill(facts, rows(lines));
}

/** @param {any} metrics @param {any} spread how the difference is spread @returns {Line[]} */
function measured(metrics, spread) {
  if (metrics.reason) return [["size", [metrics.reason]]];
  const ulps = Number.isFinite(real(metrics.ulp)) ? ` · ${number(metrics.ulp)} ULP` : "";
  const worst = metrics.max_at?.length ? `worst at [${metrics.max_at.join(", ")}]` : "";
  const share = spread?.looked
    ? `${percent(1 - spread.zero / spread.looked)} of ${count(metrics.count)} elements`
    : "";
  return [
    ["size", [sized(metrics, ulps)]],
    ["where", [[share, worst].filter(Boolean).join(", ")]],
  ];
}

/** Where no two finite numbers meet, there is no size. @param {any} metrics @param {string} ulps */
function sized(metrics, ulps) {
  if (metrics.max_abs === null) return "no two finite numbers to compare";
  return `max ${number(metrics.max_abs)} · relative ${number(metrics.relative_l2)}${ulps}`;
}

/** @param {any} comparison @returns {Line[]} */
function overall({ counts, coverage }) {
  const told = Object.entries(counts).map(
    ([verdict, n]) => /** @type {Line} */ ([verdict, [count(/** @type {number} */ (n))]]),
  );
  return [["pairs", [count(coverage.pairs)]], ...told];
}

/** @param {Line[]} lines */
function rows(lines) {
  return lines.map(([title, words]) => [el("dt", null, title), el("dd", null, words)]);
}
