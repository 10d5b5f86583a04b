// @ts-check
/** @file The columns of the two tables of a call tree: its trees, and the lines of one. */

import { count, number } from "../format.js";
import { drawChange, typeOf } from "./trace_cells.js";

/** @typedef {import("../instruments/virtual_table.js").TableColumn} TableColumn */
/** @typedef {import("./call_lines.js").Line} Line */

/**
 * @param {(at: number) => any} tree
 * @param {boolean} hasCalls
 * @returns {TableColumn[]}
 */
export function treeColumns(tree, hasCalls) {
  const numbers = (/** @type {"step" | "lines"} */ key, /** @type {string} */ width) => ({
    key,
    title: key,
    width,
    isRight: true,
    text: (/** @type {number} */ at) => count(tree(at)[key]),
    tone: () => "quiet",
  });
  const title = {
    key: "title",
    isName: true,
    title: hasCalls ? "outermost call" : "step",
    width: "minmax(0, 1fr)",
    text: (/** @type {number} */ at) => (hasCalls ? titleOf(tree(at)) : tree(at).title),
  };
  return [title, ...(hasCalls ? [numbers("step", "32px")] : []), numbers("lines", "44px")];
}

/**
 * @param {{line: (at: number) => Line, hasCalls: boolean, known: (row: number) => string, drawName: (cell: HTMLElement, at: number) => void}} of
 * @returns {TableColumn[]}
 */
export function lineColumns({ line, hasCalls, known, drawName }) {
  return [
    {
      key: "name",
      title: hasCalls ? "call, variable" : "value",
      width: "minmax(220px, 1.5fr)",
      draw: drawName,
    },
    {
      key: "what",
      title: "type",
      width: "minmax(110px, 0.7fr)",
      text: (at) => typeOf(line(at)),
      tone: () => "soft",
    },
    {
      key: "changed",
      title: "change",
      width: "minmax(120px, 0.9fr)",
      draw: (cell, at) => drawChange(cell, line(at)),
    },
    {
      key: "mean",
      title: "mean ± std",
      width: "150px",
      isRight: true,
      text: (at) => known(line(at).row ?? -1),
      tone: () => "soft",
    },
    {
      key: "where",
      title: hasCalls ? "made at" : "code at",
      width: "minmax(90px, 0.6fr)",
      text: (at) => where(line(at)),
      tone: () => "quiet",
    },
  ];
}

/** The function first: it is what one knows. @param {any} tree */
function titleOf(tree) {
  const [, site, name] = tree.title.match(/^(\S+) (.*) \(step.*\)$/) || [];
  const rank = tree.rank ? `, rank ${tree.rank}` : "";
  return site ? `${name}() ${site}${rank}` : tree.title;
}

/** @param {number} mean @param {number} std */
export function meanWords(mean, std) {
  return std === 0 || Number.isNaN(mean) ? number(mean) : `${number(mean)} ± ${number(std)}`;
}

/** @param {import("./call_lines.js").Line} line */
export function where(line) {
  return line.file ? `${line.file}${line.line ? `:${line.line}` : ""}` : "";
}
