// @ts-check
/** @file What the server is asked: JSON, columns of numbers, and what is new. */

/** @typedef {Float32Array | Float64Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Uint8Array} Column */
/** @typedef {{facts: any, columns: Record<string, Column>}} Table */

/** Stands for "no row". */
export const NONE = 4294967295;

/** @type {Record<string, any>} */
const TYPES = {
  u1: Uint8Array,
  i2: Int16Array,
  u2: Uint16Array,
  i4: Int32Array,
  u4: Uint32Array,
  f4: Float32Array,
  f8: Float64Array,
};

export class ApiError extends Error {
  /**
   * @param {string} kind
   * @param {string} text
   * @param {number | null} at the character of a query that is not understood
   */
  constructor(kind, text, at) {
    super(text);
    this.kind = kind;
    this.at = at;
  }
}

/**
 * @param {string} path
 * @param {{signal?: AbortSignal, post?: any}} [how]
 * @returns {Promise<any>}
 */
export async function json(path, how = {}) {
  return (await answer(path, how)).json();
}

/**
 * @param {string} path
 * @param {{signal?: AbortSignal}} [how]
 * @returns {Promise<Table>}
 */
export async function table(path, how = {}) {
  return unpack(await (await answer(path, how)).arrayBuffer());
}

/** @param {string} path @param {{signal?: AbortSignal, post?: any}} how */
async function answer(path, how) {
  const sent =
    how.post === undefined
      ? {}
      : {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(how.post),
        };
  const got = await fetch(path, { signal: how.signal, ...sent });
  if (!got.ok) throw await refusal(got);
  return got;
}

/** @param {Response} got */
async function refusal(got) {
  const body = await got.json().catch(() => null);
  const told = body?.error;
  return new ApiError(
    told?.kind || "failed",
    told?.text || `the server answered ${got.status}`,
    told?.at ?? null,
  );
}

/** @param {ArrayBuffer} buffer @returns {Table} */
export function unpack(buffer) {
  const bytes = new Uint8Array(buffer, 0, 8);
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "TTC1")
    throw new ApiError("corrupt", "not an answer of columns", null);
  const length = new DataView(buffer).getUint32(4, true);
  const { columns, ...facts } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {Record<string, Column>} */
  const unpacked = {};
  for (const { name, type, offset, length: items } of columns) {
    unpacked[name] = new TYPES[type](buffer, 8 + length + offset, items);
  }
  return { facts, columns: unpacked };
}

/**
 * @param {Record<string, string | number | null | undefined>} values
 */
export function query(values) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

/** @param {unknown} error */
export function isAborted(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Numbers that JSON can not hold come as text. @param {any} value @returns {number} */
export function real(value) {
  if (typeof value === "number") return value;
  if (value === "inf") return Infinity;
  return value === "-inf" ? -Infinity : NaN;
}

let isListening = false;
/** @type {Map<string, Set<(data: any) => void>>} */
const ears = new Map();
const WORDS = ["hello", "runs", "run", "stats", "refined", "compare", "lost"];

/**
 * Be told what is new; one stream serves the whole page.
 * @param {string} word
 * @param {(data: any) => void} ear
 * @param {AbortSignal} signal
 */
export function onNews(word, ear, signal) {
  const known = ears.get(word) || new Set();
  ears.set(word, known.add(ear));
  signal.addEventListener("abort", () => known.delete(ear));
  if (isListening) return;
  isListening = true;
  // What happened meanwhile was not heard.
  whileSeen(openStream, { onBack: () => ["runs", "back"].forEach((one) => tell(one, {})) });
}

function openStream() {
  const stream = new EventSource("/api/events");
  for (const word of WORDS) {
    stream.addEventListener(word, (event) =>
      tell(word, JSON.parse(/** @type {MessageEvent} */ (event).data)),
    );
  }
  stream.addEventListener("error", () => tell("lost", {}));
  return stream;
}

/**
 * A browser keeps few connections to one server, for all its tabs together: only those that are seen hold one.
 * @param {() => EventSource} open
 * @param {{signal?: AbortSignal, onBack?: () => void}} [how]
 */
export function whileSeen(open, how = {}) {
  /** @type {EventSource | null} */
  let source = document.hidden ? null : open();
  const follow = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      source = open();
      how.onBack?.();
    }
  };
  document.addEventListener("visibilitychange", follow, { signal: how.signal });
  how.signal?.addEventListener("abort", () => source?.close());
}

/** @param {string} word @param {any} data */
function tell(word, data) {
  for (const ear of ears.get(word) || []) ear(data);
}
