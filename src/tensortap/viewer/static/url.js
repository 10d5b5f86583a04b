// @ts-check
/** @file The address is the state: each visible choice is a word in it, and a shared link opens the same view. */

/** @type {Set<() => void>} */
const followers = new Set();

/** Whether the path or only the choices changed is for the follower to find out. @param {() => void} follower */
export function onAddress(follower) {
  followers.add(follower);
}

/** @param {string} name */
export function chosen(name) {
  return new URLSearchParams(location.search).get(name);
}

/**
 * @param {string} name
 * @param {number} otherwise
 */
export function chosenNumber(name, otherwise) {
  const text = chosen(name);
  const value = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : otherwise;
}

/** Words with commas between them. @param {string} name */
export function chosenWords(name) {
  return (chosen(name) || "").split(",").filter(Boolean);
}

/** The same words with one more, or without it. @param {string} name @param {string} word */
export function turned(name, word) {
  const words = chosenWords(name);
  return (words.includes(word) ? words.filter((one) => one !== word) : [...words, word]).join(",");
}

/**
 * Set choices; null or "" takes one away. A choice of its own goes into the history (`push`), so that the back button
 * returns to it; a movement replaces.
 * @param {Record<string, string | number | null | undefined>} values
 * @param {{push?: boolean}} [how]
 */
export function set(values, how = {}) {
  if (write(values, Boolean(how.push))) tell();
}

/**
 * Whether the address is another one now.
 * @param {Record<string, string | number | null | undefined>} values
 * @param {boolean} isPushed
 */
function write(values, isPushed) {
  const search = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") search.delete(name);
    else search.set(name, String(value));
  }
  const next = location.pathname + readable(search);
  if (next === location.pathname + location.search) return false;
  history[isPushed ? "pushState" : "replaceState"](null, "", next);
  return true;
}

/**
 * What the page shows already, without telling it: where it is scrolled to.
 * @param {Record<string, string | number | null>} values
 */
export function note(values) {
  write(values, false);
}

/**
 * Open as the address says: a word stands for each that is not as it is by itself.
 * @param {HTMLDetailsElement} details
 * @param {string} name
 * @param {string} word
 * @param {boolean} isOpen by itself
 */
export function remember(details, name, word, isOpen) {
  details.open = isOpen !== chosenWords(name).includes(word);
  details.addEventListener("toggle", () => {
    const isTurned = details.open !== isOpen;
    if (chosenWords(name).includes(word) !== isTurned) set({ [name]: turned(name, word) });
  });
}

/** @param {string} address */
export function go(address) {
  history.pushState(null, "", address);
  tell();
}

/**
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} values
 */
export function address(path, values = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  return path + readable(search);
}

/** Names of tensors hold brackets, commas and colons: links that people read keep them. @param {URLSearchParams} search */
function readable(search) {
  const text = search.toString().replace(/%2C/g, ",").replace(/%3A/g, ":").replace(/%2F/g, "/");
  return text ? `?${text.replace(/%5B/g, "[").replace(/%5D/g, "]")}` : "";
}

function tell() {
  for (const follower of followers) follower();
}

addEventListener("popstate", tell);
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href^='/']") : null;
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!(link instanceof HTMLAnchorElement) || !isPlain || link.hasAttribute("download") || link.target)
    return;
  event.preventDefault();
  go(link.pathname + link.search);
});
