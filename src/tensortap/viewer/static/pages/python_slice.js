// @ts-check
/** @file The Python that gives what is seen: the value, its slice, the part of it that is zoomed to. */

/** @typedef {import("../instruments/axes.js").Slice} Slice */

const OF_NUMPY = /** @type {Record<string, (value: string, axis: number) => string>} */ ({
  mean: (value, axis) => `${value}.mean(${axis})`,
  max: (value, axis) => `${value}.max(${axis})`,
  min: (value, axis) => `${value}.min(${axis})`,
  absmax: (value, axis) => `abs(${value}).max(${axis})`,
  std: (value, axis) => `${value}.std(${axis})`,
});
const OF_TORCH = /** @type {Record<string, (value: string, axis: number) => string>} */ ({
  mean: (value, axis) => `${value}.float().mean(${axis})`,
  max: (value, axis) => `${value}.amax(${axis})`,
  min: (value, axis) => `${value}.amin(${axis})`,
  absmax: (value, axis) => `${value}.abs().amax(${axis})`,
  std: (value, axis) => `${value}.float().std(${axis}, correction=0)`,
});

/**
 * @param {any} facts
 * @param {Slice | null} part
 * @param {number[] | null} seen top, bottom, left, right
 */
export function pythonOf(facts, part, seen) {
  if (!part || !facts.shape.length) return facts.python;
  const lines = [facts.python];
  const slice = sliced(facts, part);
  if (slice !== "x") lines.push(`part = ${slice}`);
  if (seen) lines.push(`seen = ${slice === "x" ? "x" : "part"}[${window(part, seen)}]`);
  return lines.join("\n");
}

/**
 * Both sides, the slice of each that is seen, and their difference, where they are of one kind.
 * @param {any} facts
 * @param {Slice | null} part
 */
export function pythonOfPair({ python, a, b, plan }, part) {
  const isAlike = a.framework === b.framework && String(a.shape) === String(b.shape);
  if (!python || !isAlike || plan.length || !a.is_array) return python;
  const slices = part ? ["a", "b"].map((name) => sliced(name === "a" ? a : b, part, name)) : ["a", "b"];
  const lines = slices[0] === "a" ? [python] : [python, `a, b = ${slices.join(", ")}`];
  const isFloat = /float/.test(a.dtype) && /float/.test(b.dtype);
  const wide = isFloat ? "" : (OF_WHOLE[a.framework] ?? "");
  return [...lines, `difference = b${wide} - a${wide}`].join("\n");
}

/** Whole numbers without a sign would wrap around, and truths cannot be subtracted. @type {Record<string, string>} */
const OF_WHOLE = { torch: ".double()", numpy: ".astype(float)" };

/** @param {any} facts @param {Slice} part @param {string} name */
function sliced(facts, part, name = "x") {
  const ways = facts.framework === "torch" ? OF_TORCH : OF_NUMPY;
  const isShown = (/** @type {number} */ axis) => axis === part.rows || axis === part.cols;
  const words = part.index.map((word, axis) =>
    isShown(axis) || typeof word === "string" ? ":" : String(word),
  );
  const left = words.map((_, axis) => axis).filter((axis) => words[axis] === ":");
  while (words.length && words[words.length - 1] === ":") words.pop();
  let text = words.length ? `${name}[${words.join(", ")}]` : name;
  // From the last axis on, so that those before it keep their numbers.
  for (const [at, axis] of [...left.entries()].reverse()) {
    if (!isShown(axis)) text = ways[String(part.index[axis])](text, at);
  }
  return part.rows > part.cols ? `${text}.T` : text;
}

/** @param {Slice} part @param {number[]} seen */
function window(part, [top, bottom, left, right]) {
  const span = (/** @type {number} */ from, /** @type {number} */ to) =>
    `${Math.floor(from)}:${Math.ceil(to)}`;
  return part.rows < 0 ? span(left, right) : `${span(top, bottom)}, ${span(left, right)}`;
}
