// @ts-check
/** @file What needs no picture: one number, and what is not made of numbers. */

import { real } from "../api.js";
import { el } from "../dom.js";
import { number, precise } from "../format.js";

/** @param {any} facts */
export function singleNumber(facts) {
  const value = real(facts.value);
  const isOdd = !Number.isFinite(value);
  const [text, exact] = [number(value), precise(value)];
  return el(
    "div",
    null,
    el("p", { class: `single mono ${isOdd ? "bad" : ""}` }, text),
    Number(text.replace(/,/g, "")) !== value && !isOdd && el("p", { class: "single-exact mono soft" }, exact),
  );
}

/** @param {any} facts */
export function plainText(facts) {
  const text = facts.problem || facts.text || facts.type;
  return el("pre", { class: `plain ${facts.problem ? "bad" : ""}` }, text);
}
