// @ts-check
/** @file From the spread of values to the ends of their colours. */

import { real } from "../api.js";

/** @typedef {import("../colors.js").Range} Range */

/** @type {[string, string, string][]} */
export const RANGES = [
  ["auto", "auto", "all values; without the outermost thousandth where that would swallow the others"],
  ["full", "full", "from the smallest to the largest value"],
  ["p999", "99.8 %", "without the lowest and the highest thousandth"],
  ["p99", "98 %", "without the lowest and the highest hundredth"],
  ["sym", "± 0", "zero in the middle, both sides alike"],
];

/**
 * @param {string} how a key of RANGES, or two numbers with a comma
 * @param {any} told what the server says of the spread
 * @returns {Range}
 */
export function colourRange(how, told) {
  const own = ownRange(how);
  if (own) return { scale: "values", low: own[0], high: own[1] };
  const [low, high, inner, outer] = [told.low, told.high, told.p01, told.p999].map(real);
  if (!(high >= low)) return { scale: "values", low: 0, high: 1 };
  if (how === "sym") {
    const most = Math.max(Math.abs(inner), Math.abs(outer)) || Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { scale: "signed", low: -most, high: most };
  }
  if (how === "p99") return { scale: "values", low: real(told.p1), high: real(told.p99) };
  const isWild = outer > inner && high - low >= 3 * (outer - inner);
  const isCut = how === "p999" || (how !== "full" && isWild);
  return { scale: "values", low: isCut ? inner : low, high: isCut ? outer : high };
}

/** @param {string} text "-1,2.5" @returns {[number, number] | null} */
export function ownRange(text) {
  const ends = text.split(",").map((word) => (word.trim() === "" ? NaN : Number(word)));
  return ends.length === 2 && ends.every(Number.isFinite) && ends[0] < ends[1] ? [ends[0], ends[1]] : null;
}
