// @ts-check
/** @file The keyboard: each page says which keys it hears, and `?` shows them. */

import { el } from "./dom.js";

/** @typedef {{keys: string[], help: string, act: (key: string) => void}} Binding */

/** @type {Binding[]} */
let bindings = [];

/** Heard by the palette itself, in fields too. */
const PALETTE = { keys: [navigator.platform.startsWith("Mac") ? "⌘K" : "Ctrl-K"], help: "go anywhere" };

/**
 * @param {Binding[]} more
 * @param {AbortSignal} signal
 */
export function listen(more, signal) {
  bindings = [...bindings, ...more];
  signal.addEventListener("abort", () => (bindings = bindings.filter((one) => !more.includes(one))));
}

/** @param {KeyboardEvent} event */
function hear(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const binding = bindings.find((one) => one.keys.includes(event.key));
  if (!binding || (event.key === " " && isPressable(event.target))) return;
  event.preventDefault();
  binding.act(event.key);
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof HTMLElement &&
    target.matches("input:not([type=checkbox]):not([type=range]), textarea, select")
  );
}

/** @param {EventTarget | null} target */
function isPressable(target) {
  return target instanceof HTMLElement && target.matches("button, a, summary, input");
}

export function showHelp() {
  const dialog = el("dialog", { class: "sheet", label: "Keys" });
  const known = [...bindings, PALETTE].map((one) => [
    el(
      "dt",
      null,
      one.keys.map((key) => el("kbd", null, name(key))),
    ),
    el("dd", null, one.help),
  ]);
  dialog.append(
    el("h2", null, "Keys"),
    el("dl", { class: "keys" }, known),
    el("p", { class: "quiet" }, "Everything you see is in the address: a shared link opens the same view."),
    el("form", { attrs: { method: "dialog" } }, el("button", { class: "button" }, "Close")),
  );
  show(dialog);
}

/**
 * A dialog that leaves nothing behind, and closes at a click beside it.
 * @param {HTMLDialogElement} dialog
 */
export function show(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  // The button at the end has the focus; reading begins at the top.
  dialog.scrollTop = 0;
}

/** @param {string} key */
function name(key) {
  const names = /** @type {Record<string, string>} */ ({
    " ": "space",
    ArrowLeft: "←",
    ArrowRight: "→",
    ArrowUp: "↑",
    ArrowDown: "↓",
    Escape: "esc",
  });
  return names[key] || key;
}

addEventListener("keydown", hear);
