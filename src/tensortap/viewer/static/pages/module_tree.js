// @ts-check
/** @file The modules of a run, coloured by how their values are. */

import { el, fill } from "../dom.js";
import { count, number } from "../format.js";
import { address, chosenWords, set, turned } from "../url.js";

/** @typedef {{path: string, label: string, parent: number, class: string, names: number, captures: number, odd: number, known: number, absmax: number | null}} Node */

const ROOM = 34; // rows that are open at first, about

export class ModuleTree {
  /** @param {any} run */
  constructor(run) {
    this.run = run;
    /** @type {Node[]} */
    this.nodes = [];
    /** @type {number[]} */
    this.depths = [];
    /** @type {Set<number>} */
    this.hasChildren = new Set();
    /** @type {Set<number>} */
    this.closed = new Set();
    this.element = el("div", { class: "tree", role: "tree", label: "Modules", attrs: { tabindex: 0 } });
  }

  /** @param {Node[]} nodes in preorder */
  show(nodes) {
    this.nodes = nodes;
    this.depths = depths(nodes);
    this.hasChildren = new Set(nodes.map((node) => node.parent));
    this.draw();
  }

  draw() {
    const { scrollTop } = this.element;
    const focused = document.activeElement?.getAttribute("data-path");
    const byHand = chosenWords("x");
    const atFirst = new Set(closedAtFirst(this.depths, this.hasChildren));
    this.closed = new Set(
      this.nodes
        .map((_, at) => at)
        .filter((at) => atFirst.has(at) !== byHand.includes(this.nodes[at].path || "model")),
    );
    /** @type {Set<number>} */
    const hidden = new Set();
    const rows = this.nodes.map((node, at) => {
      if (hidden.has(node.parent) || (node.parent >= 0 && this.closed.has(node.parent))) {
        hidden.add(at);
        return null;
      }
      return this.row(node, at);
    });
    fill(this.element, rows);
    this.element.scrollTop = scrollTop;
    for (const one of this.element.querySelectorAll("button"))
      if (one.getAttribute("data-path") === focused) one.focus();
    if (!this.nodes.length)
      fill(
        this.element,
        el("p", { class: "quiet card-body", role: "treeitem" }, "nothing was captured from modules"),
      );
  }

  /** @param {Node} node @param {number} at */
  row(node, at) {
    const isParent = this.hasChildren.has(at);
    const isOpen = !this.closed.has(at);
    const toggle = el(
      "button",
      {
        type: "button",
        class: "tree-toggle",
        label: `${isOpen ? "close" : "open"} ${node.label || "model"}`,
        attrs: { tabindex: isParent ? 0 : -1 },
        data: { path: node.path || "model" },
        on: { click: () => set({ x: turned("x", node.path || "model") }) },
      },
      isParent ? (isOpen ? "▾" : "▸") : "",
    );
    const tone = !node.known ? "" : node.odd ? "is-bad" : "is-good";
    const told = !node.known
      ? "not looked at"
      : node.odd
        ? `${count(node.odd)} of ${count(node.known)} with NaN or Inf`
        : `no NaN or Inf in ${count(node.known)}`;
    return el(
      "div",
      {
        class: "tree-row",
        role: "treeitem",
        attrs: {
          "aria-level": this.depths[at] + 1,
          ...(isParent ? { "aria-expanded": String(isOpen) } : {}),
          "aria-selected": "false",
        },
        style: { "padding-left": `${10 + this.depths[at] * 16}px` },
      },
      el(
        "span",
        { class: "tree-name" },
        isParent ? toggle : el("span", { class: "tree-toggle" }),
        el("span", { class: `health ${tone}`, title: told }),
        el(
          "a",
          {
            class: "clip",
            href: address(`/run/${this.run.id}/captures`, { q: node.path ? `module:${node.path}` : "" }),
            title: node.path || "the model",
          },
          node.label || "model",
        ),
        el("span", { class: "quiet clip" }, node.class),
      ),
      el("span", { class: "number soft" }, node.absmax === null ? "" : number(node.absmax)),
      el("span", { class: "number quiet" }, count(node.captures)),
      el("span", { class: `number ${node.odd ? "bad" : "quiet"}` }, node.odd ? count(node.odd) : ""),
    );
  }
}

/** @param {Node[]} nodes */
function depths(nodes) {
  /** @type {number[]} */
  const found = [];
  nodes.forEach((node, at) => (found[at] = node.parent < 0 ? 0 : found[node.parent] + 1));
  return found;
}

/**
 * As deep as there is room for.
 * @param {number[]} levels
 * @param {Set<number>} parents
 */
function closedAtFirst(levels, parents) {
  let deepest = 1;
  while (
    levels.some((level) => level > deepest) &&
    levels.filter((level) => level <= deepest + 1).length <= ROOM
  )
    deepest += 1;
  return levels.map((_, at) => at).filter((at) => levels[at] >= deepest && parents.has(at));
}
