// @ts-check
/** @file What needs no picture: one number, and what is not made of numbers. */

import { el } from "../dom.js";
import { number } from "../format.js";

/** @param {any} facts */
export function singleNumber(facts) {
  const known = facts.statistics;
  const value = known?.nan ? "nan" : known?.inf ? "inf" : known?.mean;
  return el("p", { class: `single mono ${known?.nan || known?.inf ? "bad" : ""}` }, number(value));
}

/** @param {any} facts */
export function plainText(facts) {
  const text = facts.problem || facts.text || facts.type;
  return el("pre", { class: `plain ${facts.problem ? "bad" : ""}` }, text);
}
