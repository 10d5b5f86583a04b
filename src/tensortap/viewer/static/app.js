// @ts-check
/** @file The way from an address to a page. */

import { isAborted } from "./api.js";
import { fill } from "./dom.js";
import { Frame } from "./frame.js";
import { trouble } from "./messages.js";
import { onAddress } from "./url.js";

/**
 * What a page gets. The signal is aborted when the page is left: whatever it has begun ends with it.
 * @typedef {{root: HTMLElement, params: string[], signal: AbortSignal, frame: Frame}} Context
 */
/**
 * What a page gives: what to do when only choices of the address changed.
 * @typedef {{update?: () => void}} Page
 */
/** @typedef {{mount: (context: Context) => Promise<Page> | Page}} PageFile */

/** @type {[RegExp, () => Promise<PageFile>][]} */
const ROUTES = [
  [/^\/$/, () => import("./pages/runs.js")],
  [/^\/compare$/, () => import("./pages/compare.js")],
  [/^\/run\/([^/]+)$/, () => import("./pages/run.js")],
  [/^\/run\/([^/]+)\/captures$/, () => import("./pages/captures.js")],
  [/^\/run\/([^/]+)\/t\/(.+)$/, () => import("./pages/tensor.js")],
  [/^\/run\/([^/]+)\/trace$/, () => import("./pages/trace.js")],
  [/^\/live(?:\/([^/]+))?$/, () => import("./pages/live.js")],
];
/** Other runs are another page of comparison, not another view of this one. */
const RUNS = ["a", "b", "c"];

const root = /** @type {HTMLElement} */ (document.getElementById("page"));
const frame = new Frame(/** @type {HTMLElement} */ (document.getElementById("header")));
/** @type {{key: string, end: AbortController, page: Page} | null} */
let current = null;

async function follow() {
  const key = identity();
  if (current?.key === key) return current.page.update?.();
  current?.end.abort();
  const end = new AbortController();
  current = { key, end, page: {} };
  frame.clear();
  fill(root);
  try {
    const page = await open(end.signal);
    if (current.end === end) current.page = page;
    else end.abort();
  } catch (error) {
    if (isAborted(error) || end.signal.aborted) return undefined;
    frame.show({ crumbs: [], title: "trouble" });
    fill(root, trouble(error));
  }
  return undefined;
}

function identity() {
  const search = new URLSearchParams(location.search);
  const runs = location.pathname === "/compare" ? RUNS.map((name) => search.get(name)) : [];
  return `${location.pathname} ${runs.join(" ")}`;
}

/** @param {AbortSignal} signal */
async function open(signal) {
  const path = location.pathname.replace(/(.)\/$/, "$1");
  const route = ROUTES.find(([pattern]) => pattern.test(path));
  if (!route) throw new Error(`there is no page ${location.pathname}`);
  const params = (path.match(route[0]) || []).slice(1).map((one) => decodeURIComponent(one || ""));
  const file = await route[1]();
  scrollTo(0, 0);
  return file.mount({ root, params, signal, frame });
}

onAddress(follow);
follow();
