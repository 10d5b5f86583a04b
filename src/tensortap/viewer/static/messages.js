// @ts-check
/** @file What is said to people: notes, trouble, and that something takes its time. */

import { ApiError } from "./api.js";
import { el } from "./dom.js";
import { show } from "./keys.js";

/**
 * @param {string} text
 * @param {string} what
 */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    tell(`${what} is on the clipboard.`);
  } catch {
    // Some browsers give the clipboard to secure pages only.
    show(
      el(
        "dialog",
        { class: "sheet", label: what },
        el("h2", null, what),
        el("pre", null, text),
        el("form", { attrs: { method: "dialog" } }, el("button", { class: "button" }, "Close")),
      ),
    );
  }
}

/** @param {string} text @param {{isBad?: boolean}} [how] */
export function tell(text, how = {}) {
  const place = /** @type {HTMLElement} */ (document.getElementById("messages"));
  const message = el("div", { class: `message ${how.isBad ? "is-bad" : ""}` }, text);
  place.append(message);
  setTimeout(() => message.remove(), how.isBad ? 8000 : 2600);
}

/** @param {unknown} error */
export function words(error) {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError && /fetch|network/i.test(error.message)) {
    return "the viewer does not answer: was it ended? `tensortap view` starts it again";
  }
  return error instanceof Error ? error.message : String(error);
}

/** @param {unknown} error @param {string} [title] */
export function trouble(error, title = "This cannot be shown") {
  return el(
    "section",
    { class: "trouble", role: "alert" },
    el("h1", null, title),
    el("p", null, words(error)),
    el("a", { class: "button", href: "/" }, "All runs"),
  );
}

/** @param {string} text */
export function waiting(text) {
  const bar = el("i");
  const made = el(
    "div",
    { class: "waiting", role: "status" },
    el("div", null, el("div", { class: "waiting-text" }, text), el("div", { class: "bar is-unsure" }, bar)),
  );
  return {
    element: made,
    /** @param {number} done @param {number} of @param {string} said */
    progress(done, of, said) {
      /** @type {HTMLElement} */ (made.querySelector(".waiting-text")).textContent = said;
      /** @type {HTMLElement} */ (made.querySelector(".bar")).classList.toggle("is-unsure", !of);
      if (of) bar.style.width = `${(100 * done) / of}%`;
    },
  };
}
