// @ts-check
/** @file The pairs of a comparison as columns, and the ways from one to another. */

/** @typedef {import("../api.js").Table} Table */

export class Pairs {
  /** @param {Table} table */
  constructor(table) {
    this.columns = table.columns;
    this.texts = table.facts.texts;
    this.length = table.facts.pairs;
    /** @type {Map<string, number[]> | null} */
    this.tracks = null;
  }

  /** @param {string} column @param {number} pair @returns {string} */
  text(column, pair) {
    return this.texts[column][this.columns[column][pair]] ?? "";
  }

  /** @param {string} column @param {number} pair */
  number(column, pair) {
    return this.columns[column][pair];
  }

  names() {
    return /** @type {string[]} */ ([...new Set(this.texts.name)]);
  }

  /** One value over the steps. @param {number} pair */
  track(pair) {
    if (!this.tracks) this.tracks = this.trace();
    return this.tracks.get(this.key(pair)) || [pair];
  }

  trace() {
    /** @type {Map<string, number[]>} */
    const tracks = new Map();
    for (let pair = 0; pair < this.length; pair++) {
      const key = this.key(pair);
      const known = tracks.get(key);
      if (known) known.push(pair);
      else tracks.set(key, [pair]);
    }
    for (const track of tracks.values())
      track.sort((one, other) => this.columns.step[one] - this.columns.step[other]);
    return tracks;
  }

  /** @param {number} pair @param {number} [rank] */
  key(pair, rank = this.columns.rank[pair]) {
    const { name, kind, call } = this.columns;
    return `${name[pair]} ${kind[pair]} ${call[pair]} ${rank}`;
  }

  /**
   * The pair of that name nearest to that step.
   * @param {string} name
   * @param {string | null} kind
   * @param {number} step
   * @param {number} rank
   * @param {number} call
   */
  find(name, kind, step, rank, call) {
    const code = this.texts.name.indexOf(name);
    if (code < 0) return null;
    let best = null;
    let least = Infinity;
    const columns = this.columns;
    for (let pair = 0; pair < this.length; pair++) {
      if (columns.name[pair] !== code) continue;
      const isOther = kind ? this.text("kind", pair) !== kind : false;
      const far =
        Math.abs(columns.step[pair] - step) +
        1e6 * Math.abs(columns.rank[pair] - rank) +
        1e9 * Math.abs(columns.call[pair] - call) +
        (isOther ? 1e12 : 0);
      if (far < least) [least, best] = [far, pair];
    }
    return best;
  }

  /** What the address says of a pair. @param {number} pair */
  words(pair) {
    const { step, rank, call } = this.columns;
    const kind = this.text("kind", pair);
    return {
      t: this.text("name", pair),
      k: kind === "output" ? null : kind,
      s: step[pair],
      r: rank[pair] || null,
      n: call[pair] || null,
    };
  }

  /** The tensor after (or before) this one, within its step and rank. @param {number} pair @param {1 | -1} way */
  beside(pair, way) {
    const { step, rank } = this.columns;
    for (let at = pair + way; at >= 0 && at < this.length; at += way) {
      if (step[at] === step[pair] && rank[at] === rank[pair]) return at;
    }
    return null;
  }

  /** The same tensor a step later (or earlier). @param {number} pair @param {1 | -1} way */
  later(pair, way) {
    const track = this.track(pair);
    return track[track.indexOf(pair) + way] ?? null;
  }

  /** @param {number} pair @param {1 | -1} way */
  otherRank(pair, way) {
    const ranks = [...new Set(this.columns.rank)].sort((one, other) => one - other);
    const next = ranks[ranks.indexOf(this.columns.rank[pair]) + way];
    if (next === undefined) return null;
    if (!this.tracks) this.tracks = this.trace();
    const track = this.tracks.get(this.key(pair, next)) || [];
    return track.find((one) => this.columns.step[one] === this.columns.step[pair]) ?? track[0] ?? null;
  }

  /** Where the difference is largest; the first of all where there is none. */
  worst() {
    if (!this.length) return null;
    const { relative_l2: error } = this.columns;
    let best = 0;
    for (let pair = 1; pair < this.length; pair++)
      if (error[pair] > error[best] || !(error[best] >= 0)) best = pair;
    return best;
  }
}
