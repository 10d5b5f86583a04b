// @ts-check
/** @file What stands beside a long list of names, and below a long list of steps, so that it can be read. */

/** @typedef {{row: number, text: string}} Label */

const LEAST = 13; // pixels from one label to the next
const TALL = 11; // pixels of a label: the first, which is moved down into sight, comes as close as that

/**
 * Each name where there is room, else the blocks that they belong to.
 * @param {string[]} names
 * @param {string[]} kinds
 * @param {number} top
 * @param {number} bottom
 * @param {number} height pixels of one row
 * @returns {Label[]}
 */
export function labels(names, kinds, top, bottom, height) {
  const stem = common(names.slice(top, bottom));
  const said = (/** @type {number} */ row) => names[row].slice(stem) + mark(kinds[row] || "");
  if (height >= LEAST) return numbers(top, bottom).map((row) => ({ row, text: said(row) }));
  return spread(blocks(names, kinds, top, bottom), top, height).map(({ row }) => ({
    row,
    text: block(names[row], kinds[row]).slice(stem) || said(row),
  }));
}

/** The middle of a label, in pixels from the top: that of its row, but never cut off. @param {number} row @param {number} height of one row */
export function labelPlace(row, height) {
  return Math.max((row + 0.5) * height, 6);
}

/**
 * Where each block begins, and how many rows it has.
 * @param {string[]} names
 * @param {string[]} kinds
 * @param {number} top
 * @param {number} bottom
 */
function blocks(names, kinds, top, bottom) {
  const begins = numbers(top, bottom).filter(
    (row) => row === top || block(names[row], kinds[row]) !== block(names[row - 1], kinds[row - 1]),
  );
  return begins.map((row, at) => ({ row, size: (begins[at + 1] ?? bottom) - row }));
}

/** Gradients and inputs bear the name of their module. @param {string} kind */
function mark(kind) {
  return kind.startsWith("grad") ? " ∇" : kind === "input" ? " ←" : "";
}

/** A name up to its first number, "model.layers.3", with the call and the way of its values. @param {string} name @param {string} kind */
function block(name, kind = "") {
  const [whole, again = ""] = name.match(/^(.*?)(@\d+)?$/s)?.slice(1) || [name];
  const parts = whole.split(".");
  const at = parts.findIndex((part) => /^\d+$/.test(part));
  const way = kind.startsWith("grad") ? mark(kind) : "";
  return (at < 0 ? whole : parts.slice(0, at + 1).join(".")) + again + way;
}

/** How many characters all names begin with, up to a dot. @param {string[]} names */
function common(names) {
  if (names.length < 2) return 0;
  const lasts = names.map((name) => name.split("."));
  let at = 0;
  let length = 0;
  const dotted = lasts.filter((parts) => parts.length > 1);
  // One or two names outside (a loss, a head) do not make all the others long.
  if (dotted.length < names.length * 0.9) return 0;
  while (dotted.every((parts) => parts.length > at + 1 && parts[at] === dotted[0][at]))
    length += dotted[0][at++].length + 1;
  return dotted.length === names.length ? length : 0;
}

/**
 * The larger a block, the earlier it gets its place.
 * @param {{row: number, size: number}[]} wanted
 * @param {number} top
 * @param {number} height pixels of one row
 */
function spread(wanted, top, height) {
  const place = (/** @type {number} */ row) => labelPlace(row - top, height);
  /** @type {{row: number, size: number}[]} */
  const kept = [];
  for (const one of [...wanted].sort((first, second) => second.size - first.size || first.row - second.row)) {
    const isFree = (/** @type {number} */ row) =>
      Math.abs(row - one.row) * height >= LEAST && Math.abs(place(row) - place(one.row)) >= TALL;
    if (kept.every(({ row }) => isFree(row))) kept.push(one);
  }
  return kept;
}

/**
 * Round positions, not more than fit.
 * @param {number} count
 * @param {number} most
 */
export function ticks(count, most) {
  const rough = count / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough) || 1);
  return numbers(0, Math.ceil(count / step)).map((at) => at * step);
}

/** @param {number} from @param {number} to */
function numbers(from, to) {
  return Array.from({ length: Math.max(to - from, 0) }, (_, at) => from + at);
}
