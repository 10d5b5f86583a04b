// @ts-check
/** @file Numbers, sizes and times, as eyes like them. */

/**
 * Four digits, and an exponent only where it saves some: 0.007812, -4.61e-6, 1.000, 27,509.
 * @param {number | string | null | undefined} value JSON has no infinity: those come as text
 */
export function number(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "string") return odd(value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN);
  if (!Number.isFinite(value)) return odd(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return count(value);
  if (size >= 1e5 || size < 1e-3) return short(value.toExponential(2));
  return value.toPrecision(4);
}

/** @param {number} value */
function odd(value) {
  return Number.isNaN(value) ? "NaN" : value > 0 ? "+inf" : "-inf";
}

/** @param {string} text */
function short(text) {
  return text.replace("e+", "e");
}

/** As many digits as a number of single precision has. @param {number} value */
export function precise(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || size === 0) return number(value);
  return size < 1e-4 ? value.toExponential(4) : String(Number(value.toPrecision(9)));
}

/**
 * Few characters, for cells and axes.
 * @param {number} value
 */
export function brief(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "+∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-3) return short(value.toExponential(1));
  return String(Number(value.toPrecision(3)));
}

/** @param {number} value */
export function count(value) {
  return value.toLocaleString("en-US");
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = bytes > 0 ? Math.min(Math.floor(Math.log10(bytes) / 3), units.length - 1) : 0;
  const scaled = bytes / 1000 ** power;
  return `${scaled >= 100 || power === 0 ? Math.round(scaled) : scaled.toPrecision(3)} ${units[power]}`;
}

/** @param {number} part */
export function percent(part) {
  const all = part * 100;
  if (all === 0 || all === 100) return `${all} %`;
  if (all < 0.01) return "< 0.01 %";
  if (all > 99.99) return "> 99.99 %";
  return `${Number(all.toPrecision(3))} %`;
}

/**
 * @param {number} n
 * @param {string} one
 * @param {string} [many]
 */
export function plural(n, one, many) {
  return `${count(n)} ${n === 1 ? one : many || `${one}s`}`;
}

/** @param {readonly (number | string)[] | string} dims the server has both ways */
export function shape(dims) {
  return typeof dims === "string" ? `[${dims.replace(/,\s*/g, ", ")}]` : `[${dims.join(", ")}]`;
}

const SHORT_DTYPES = /** @type {Record<string, string>} */ ({
  float32: "f32",
  float64: "f64",
  float16: "f16",
  bfloat16: "bf16",
  int64: "i64",
  int32: "i32",
  int16: "i16",
  int8: "i8",
  uint8: "u8",
  complex64: "c64",
  complex128: "c128",
});

/** @param {string} name */
export function dtype(name) {
  return SHORT_DTYPES[name] || name.replace("float8_", "f8_");
}

/** @param {number} seconds since 1970 */
export function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  if (past < 60) return "just now";
  for (const [unit, length, most] of /** @type {[string, number, number][]} */ ([
    ["min", 60, 60],
    ["h", 3600, 24],
    ["d", 86400, 14],
  ])) {
    if (past < length * most) return `${Math.floor(past / length)} ${unit} ago`;
  }
  return moment(seconds).slice(0, 10);
}

/** @param {number} seconds since 1970 */
export function moment(seconds) {
  const at = new Date(seconds * 1000);
  const local = new Date(at.getTime() - at.getTimezoneOffset() * 60000);
  return local.toISOString().slice(0, 19).replace("T", " ");
}

/** As a word of a shell. @param {string} text */
export function quoted(text) {
  return `'${text.replace(/'/g, "'\\''")}'`;
}

/** Runs are often named by their moment; the folder says what they are. @param {string} path */
export function runName(path) {
  const parts = path.split("/").filter(Boolean);
  const last = parts[parts.length - 1] || path;
  return /^\d{8}_\d{6}/.test(last) ? parts.slice(-2).join("/") : last;
}

/**
 * A long dotted name keeps its beginning and its end; the end says what it is.
 * @param {string} name
 * @param {number} most characters
 */
export function middle(name, most) {
  if (name.length <= most) return name;
  const head = Math.max(1, Math.floor(most * 0.3));
  return `${name.slice(0, head)}…${name.slice(name.length - (most - head - 1))}`;
}
