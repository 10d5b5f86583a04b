// @ts-check
/** @file Ctrl-K: go anywhere, do anything, by typing a few of its letters. */

import { el, fill } from "./dom.js";
import { show } from "./keys.js";

/** @typedef {{text: string, hint?: string, act: () => void}} Command */

const SHOWN = 12;
/** @type {Set<() => Command[] | Promise<Command[]>>} */
const sources = new Set();

/**
 * @param {() => Command[] | Promise<Command[]>} source asked each time the palette opens
 * @param {AbortSignal} [signal]
 */
export function offer(source, signal) {
  sources.add(source);
  signal?.addEventListener("abort", () => sources.delete(source));
}

export async function openPalette() {
  if (document.querySelector("dialog[open]")) return;
  const list = el("ul", { id: "palette-list", class: "palette-list", role: "listbox", label: "Commands" });
  const input = el("input", {
    class: "palette-input",
    type: "text",
    label: "Search commands, runs and tensors",
    role: "combobox",
    attrs: {
      placeholder: "Go to a run, a tensor, a page…",
      "aria-controls": "palette-list",
      "aria-expanded": "true",
      autocomplete: "off",
      spellcheck: "false",
    },
  });
  const dialog = el("dialog", { class: "sheet palette", label: "Command palette" }, input, list);
  show(dialog);
  const commands = (await Promise.all([...sources].map((source) => source()))).flat();
  run(dialog, input, list, commands);
}

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLInputElement} input
 * @param {HTMLElement} list
 * @param {Command[]} commands
 */
function run(dialog, input, list, commands) {
  let at = 0;
  /** @type {Command[]} */
  let found = [];
  const take = (/** @type {Command | undefined} */ command) => {
    dialog.close();
    command?.act();
  };
  const draw = () => {
    fill(
      list,
      found.map((one, index) => entry(one, index === at, index, () => take(one))),
    );
    if (!found.length)
      fill(list, el("li", { class: "quiet palette-none", role: "option" }, "nothing like that"));
    input.setAttribute("aria-activedescendant", found.length ? `palette-${at}` : "");
  };
  const look = () => {
    found = search(commands, input.value);
    at = 0;
    draw();
  };
  input.addEventListener("input", look);
  input.addEventListener("keydown", (event) => {
    const move = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (event.key === "Enter") take(found[at]);
    if (event.key !== "Enter" && !move) return;
    event.preventDefault();
    at = found.length ? (at + move + found.length) % found.length : 0;
    if (move) draw();
  });
  look();
}

/**
 * @param {Command} command
 * @param {boolean} isOn
 * @param {number} index
 * @param {() => void} act
 */
function entry(command, isOn, index, act) {
  return el(
    "li",
    {
      id: `palette-${index}`,
      role: "option",
      class: "palette-entry",
      attrs: { "aria-selected": String(isOn) },
      on: { click: act },
    },
    el("span", { class: "palette-text" }, command.text),
    el("span", { class: "palette-hint" }, command.hint || ""),
  );
}

/**
 * @param {Command[]} commands
 * @param {string} typed
 */
export function search(commands, typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return commands.slice(0, SHOWN);
  /** @type {[number, Command][]} */
  const scored = [];
  for (const command of commands) {
    const text = `${command.text} ${command.hint || ""}`.toLowerCase();
    const score = words.reduce((sum, word) => sum + match(text, word), 0);
    if (score > -Infinity) scored.push([score, command]);
  }
  return scored
    .sort((one, other) => other[0] - one[0])
    .slice(0, SHOWN)
    .map(([, command]) => command);
}

/**
 * Letters in their order; the closer together and the earlier, the better.
 * @param {string} text
 * @param {string} word
 */
function match(text, word) {
  const whole = text.indexOf(word);
  if (whole >= 0) return 100 - Math.min(whole, 50);
  let at = -1;
  const begin = text.indexOf(word[0]);
  for (const letter of word) {
    at = text.indexOf(letter, at + 1);
    if (at < 0) return -Infinity;
  }
  return -(at - begin);
}

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette();
  }
});
