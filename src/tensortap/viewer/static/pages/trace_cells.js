// @ts-check
/** @file One line of a call tree, drawn into cells that are used again. */

import { el, fill, say } from "../dom.js";
import { dtype } from "../format.js";

/** @typedef {import("./call_lines.js").Line} Line */
/** @typedef {{hasCalls: boolean, isCall: boolean, isOpen: boolean, isFirst: boolean, turn: () => void}} Look */

const INDENT = 16; // pixels of one level
const DEEPEST = 14; // levels that are set in; beyond them a number tells
const WORDS = /** @type {Record<string, string>} */ ({
  input: "→",
  return: "return",
  yield: "yield",
  raise: "raise",
});

/** @type {WeakMap<HTMLElement, {toggle: HTMLButtonElement, word: HTMLElement, stem: HTMLElement, name: HTMLElement, kind: HTMLElement, mark: HTMLElement, turn: () => void}>} */
const parts = new WeakMap();

/** @param {HTMLElement} cell @param {Line} line @param {Look} look */
export function drawLine(cell, line, look) {
  const made = parts.get(cell) || make(cell);
  const level = look.hasCalls ? line.depth + (look.isCall ? 0 : 1) : 0;
  made.turn = look.turn;
  cell.style.setProperty("padding-left", `${Math.min(level, DEEPEST) * INDENT}px`);
  cell.style.setProperty("--levels", String(Math.min(level, DEEPEST)));
  made.toggle.style.visibility = look.isCall ? "visible" : "hidden";
  say(made.toggle, !look.isCall ? "" : look.isOpen ? "▾" : "▸");
  made.toggle.setAttribute("aria-label", `${look.isOpen ? "close" : "open"} ${line.name}`);
  made.toggle.setAttribute("aria-expanded", String(look.isOpen));
  say(made.word, look.hasCalls ? WORDS[line.kind] || "" : "");
  made.word.hidden = !made.word.textContent;
  made.word.className = line.kind === "raise" ? "bad" : "quiet";
  const [stem, name] = named(line, look);
  say(made.stem, stem);
  say(made.name, name);
  say(made.kind, look.hasCalls || line.kind === "output" ? "" : line.kind);
  made.name.className = look.isCall ? "trace-call" : "trace-name";
  say(made.mark, line.odd ? (look.isFirst ? `first ${line.odd}` : line.odd) : "");
  made.mark.className = look.isFirst ? "trace-odd is-first" : "trace-odd";
  made.mark.hidden = !line.odd;
}

/** @param {HTMLElement} cell */
function make(cell) {
  const made = {
    toggle: el("button", { type: "button", class: "tree-toggle", attrs: { tabindex: -1 } }),
    word: el("span"),
    stem: el("span", { class: "quiet" }),
    name: el("span"),
    kind: el("span", { class: "trace-kind quiet" }),
    mark: el("span", { class: "trace-odd" }),
    turn: () => {},
  };
  made.toggle.addEventListener("click", (event) => {
    event.stopPropagation();
    made.turn();
  });
  fill(
    cell,
    el(
      "span",
      { class: "trace-cell" },
      made.toggle,
      made.word,
      el("span", { class: "clip" }, made.stem, made.name, made.kind),
      made.mark,
    ),
  );
  parts.set(cell, made);
  return made;
}

/** What stands quietly before a name, and the name. @param {Line} line @param {Look} look */
function named(line, look) {
  if (look.isCall) return ["", `${line.function || line.name}()`];
  if (!look.hasCalls) {
    const at = line.name.lastIndexOf(".") + 1;
    return [line.name.slice(0, at), line.name.slice(at)];
  }
  if (line.name === line.function) return ["", ""];
  const stem = `${line.function}.`;
  return ["", line.name.startsWith(stem) ? line.name.slice(stem.length) : line.name];
}

/** @param {HTMLElement} cell @param {Line} line */
export function drawChange(cell, line) {
  const text = line.changed.join(" · ");
  if (cell.dataset.text === text) return;
  cell.dataset.text = text;
  fill(
    cell,
    line.changed.map((change, at) => {
      const [, what, before, after] = change.match(/^(\S+) (.*) -> (.*)$/) || [];
      if (!what) return change;
      const short = (/** @type {string} */ one) => (what === "dtype" ? dtype(one) : `[${one}]`);
      return [
        at > 0 && " · ",
        el("span", { class: "was" }, short(before)),
        el("span", { class: "quiet" }, " → "),
        el("span", { class: "now" }, short(after)),
      ];
    }),
  );
}

/** @param {Line} line */
export function typeOf(line) {
  if (line.kind === "call" || line.what === "NoneType") return "";
  const [, name, rest] = line.what.match(/^([^[]*)(.*)$/) || [];
  return `${dtype(name || "")}${rest || ""}`;
}

/** @param {any} run */
export function noCalls(run) {
  return el(
    "section",
    { class: "empty" },
    el("h1", null, "This run has no calls"),
    el("p", { class: "soft" }, "A function that is watched leaves its calls, and what its variables became:"),
    el(
      "pre",
      null,
      'tap = tt.Tap(sinks=[tt.RunDirectory("runs/calls")])\n\n@tt.watch(tap=tap)\ndef forward(batch): ...',
    ),
    el("a", { class: "button", href: `/run/${run.id}` }, "Overview"),
  );
}
