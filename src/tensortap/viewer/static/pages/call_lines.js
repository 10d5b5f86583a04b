// @ts-check
/** @file The lines of one call tree: which are there, which are in sight, and where calls end. */

/**
 * @typedef {{depth: number, kind: string, name: string, row: number | null, function: string, file: string, line: number | null, what: string, changed: string[], odd: string}} Line
 */

export class Lines {
  /** @param {boolean} hasCalls else these are the values of modules, one below the other */
  constructor(hasCalls) {
    this.hasCalls = hasCalls;
    /** @type {Line[]} */
    this.all = [];
    this.of = 0;
    /** @type {Set<number>} calls that were opened or closed by hand */
    this.turned = new Set();
  }

  /** One that was here before takes its place again. @param {{from: number, of: number, lines: Line[]}} page */
  add(page) {
    this.of = page.of;
    this.all.splice(page.from, page.lines.length, ...page.lines);
    this.all.length = Math.min(this.all.length, page.of);
  }

  /** @param {number} at */
  isCall(at) {
    return this.hasCalls && this.all[at].kind === "call";
  }

  /** @param {number} at @param {number} deepest */
  isOpen(at, deepest) {
    return this.all[at].depth < deepest !== this.turned.has(at);
  }

  /** Where a call is over: at its caller's next line, or at another call beside it. @param {number} at */
  end(at) {
    const { depth } = this.all[at];
    let next = at + 1;
    while (next < this.all.length && !this.isAfter(next, depth)) next += 1;
    return next;
  }

  /** @param {number} at @param {number} depth */
  isAfter(at, depth) {
    const line = this.all[at];
    return line.depth < depth || (line.depth === depth && line.kind === "call");
  }

  /**
   * @param {number} deepest calls from this depth on are closed, unless somebody opened them
   * @param {string} text what must be in a line
   * @param {boolean} isOnlyNews only lines in which something changed, and the first that is not finite
   */
  seen(deepest, text, isOnlyNews) {
    /** @type {number[]} */
    const found = [];
    const isSearch = Boolean(text) || isOnlyNews;
    const odd = this.firstOdd();
    for (let at = 0; at < this.all.length; at++) {
      const isNews = !isOnlyNews || this.all[at].changed.length > 0 || at === odd;
      if (isNews && this.holds(at, text)) found.push(at);
      if (!isSearch && this.isCall(at) && !this.isOpen(at, deepest)) at = this.end(at) - 1;
    }
    return found;
  }

  /** @param {number} at @param {string} text */
  holds(at, text) {
    if (!text) return true;
    const { name, what, file, changed, odd } = this.all[at];
    return `${name} ${what} ${file} ${changed.join(" ")} ${odd}`.toLowerCase().includes(text.toLowerCase());
  }

  /** The first line that is not finite. */
  firstOdd() {
    const at = this.all.findIndex((line) => line.odd);
    return at < 0 ? null : at;
  }

  /** The calls around a line that are closed. @param {number} at @param {number} deepest */
  closedAround(at, deepest) {
    return Array.from({ length: at + 1 }, (_, before) => before).filter(
      (before) => this.isCall(before) && !this.isOpen(before, deepest) && this.end(before) > at,
    );
  }
}
