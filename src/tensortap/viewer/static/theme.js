// @ts-check
/** @file Dark or light: what the system prefers, until somebody chooses. */

const KEY = "tensortap.theme";
const system = matchMedia("(prefers-color-scheme: light)");
/** @type {Set<() => void>} */
const listeners = new Set();

/** @returns {"dark" | "light"} */
export function theme() {
  return document.documentElement.dataset.theme === "light" ? "light" : "dark";
}

export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, next);
  show(next);
}

/**
 * Canvases do not follow CSS by themselves: whoever draws one listens here.
 * @param {() => void} listener
 * @param {AbortSignal} signal
 */
export function onTheme(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

/**
 * A colour of the style sheet, for a canvas.
 * @param {string} name
 */
export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** @param {"dark" | "light"} next */
function show(next) {
  document.documentElement.dataset.theme = next;
  for (const listener of listeners) listener();
}

system.addEventListener("change", () => {
  if (!localStorage.getItem(KEY)) show(system.matches ? "light" : "dark");
});
