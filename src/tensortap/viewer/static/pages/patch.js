// @ts-check
/** @file The lines of a patch, what was added and what was taken in their colours. */

import { el } from "../dom.js";

const MOST = 4000;
const TONES = /** @type {Record<string, string>} */ ({ "+": "added", "-": "taken" });

/** @param {string[]} lines @param {string} label */
export function patchLines(lines, label) {
  const shown = lines.slice(0, MOST).map((line) => el("span", { class: TONES[line[0]] || "" }, `${line}\n`));
  return el("div", { class: "patch", attrs: { tabindex: 0 }, role: "region", label }, shown);
}
