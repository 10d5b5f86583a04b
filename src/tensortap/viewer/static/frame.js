// @ts-check
/** @file What is the same on all pages: the header. */

import { json, onNews } from "./api.js";
import { button, el, fill, svg } from "./dom.js";
import { listen, show, showHelp } from "./keys.js";
import { copy, tell } from "./messages.js";
import { offer, openPalette } from "./palette.js";
import { toggleTheme } from "./theme.js";
import { go } from "./url.js";

/** @typedef {{text: string, href?: string}} Crumb */
/** @typedef {{letter: string, text: string, href: string, title?: string}} Chip */
/** @typedef {{text: string, state: "live" | "idle" | "lost", href?: string}} Pulse */

const SIDES = ["a", "b"];
const forever = new AbortController().signal;

export class Frame {
  /** @param {HTMLElement} header */
  constructor(header) {
    this.crumbs = el("nav", { class: "crumbs", label: "Breadcrumb" });
    this.chips = el("div", { class: "chips" });
    this.pulse = el("span", { class: "live" });
    /** @type {{title: string, lines: string[]} | null} */
    this.reproducing = null;
    /** @type {(() => string) | null} */
    this.python = null;
    this.reproduceButton = button("Reproduce…", () => this.reproduce(), { class: "primary" });
    fill(header, logo(), this.crumbs, this.chips, el("span", { class: "spacer" }), this.pulse, this.tools());
    this.listen();
  }

  /** @param {{crumbs: Crumb[], chips?: Chip[], title: string}} what */
  show(what) {
    document.title = `${what.title} · tensortap`;
    fill(
      this.crumbs,
      what.crumbs.map((one, at) => [
        at > 0 && el("span", { class: "divider", attrs: { "aria-hidden": "true" } }, "/"),
        one.href
          ? el("a", { class: "clip", href: one.href, title: one.text }, one.text)
          : el("span", { class: "clip", title: one.text }, one.text),
      ]),
    );
    const chips = what.chips || [];
    fill(
      this.chips,
      chips.map((one, at) => [
        at > 0 && el("span", { class: "quiet", attrs: { "aria-hidden": "true" } }, "⇄"),
        el(
          "a",
          { class: `chip side-${SIDES[at] || "a"}`, href: one.href, title: one.title || one.text },
          one.letter && el("b", null, one.letter),
          el("span", { class: "clip" }, one.text),
        ),
      ]),
    );
  }

  /** A page that leaves takes its own things along. */
  clear() {
    this.reproducing = null;
    this.python = null;
    this.reproduceButton.hidden = true;
  }

  /** @param {string} title @param {string[]} lines commands */
  canReproduce(title, lines) {
    this.reproducing = { title, lines };
    this.reproduceButton.hidden = false;
  }

  /** A page that knows how its job is doing says so until it is left. @param {Pulse | null} pulse */
  takePulse(pulse) {
    this.isTaken = pulse !== null;
    if (pulse) this.beat(pulse);
    else this.jobs();
  }

  isTaken = false;

  /** @param {Pulse | null} pulse */
  beat(pulse) {
    const dot = el("span", {
      class: `dot ${pulse ? `is-${pulse.state}` : ""}`,
      attrs: { "aria-hidden": "true" },
    });
    fill(
      this.pulse,
      pulse && [dot, pulse.href ? el("a", { class: "soft", href: pulse.href }, pulse.text) : pulse.text],
    );
  }

  reproduce() {
    if (!this.reproducing) return;
    const { title, lines } = this.reproducing;
    const text = lines.join("\n");
    show(
      el(
        "dialog",
        { class: "sheet", label: title },
        el("h2", null, title),
        el(
          "p",
          { class: "soft" },
          "In a terminal, where the program ran. It prints its plan first and asks before it runs anything.",
        ),
        el("pre", null, text),
        el(
          "form",
          { attrs: { method: "dialog" } },
          button("Copy", () => copy(text, "The command"), { class: "primary" }),
          " ",
          el("button", { class: "button" }, "Close"),
        ),
      ),
    );
  }

  tools() {
    this.reproduceButton.hidden = true;
    const isMac = navigator.platform.startsWith("Mac");
    const palette = el(
      "button",
      {
        type: "button",
        class: "button",
        label: "Command palette",
        title: "Go anywhere",
        attrs: { "aria-keyshortcuts": "Control+K Meta+K" },
        on: { click: () => openPalette() },
      },
      isMac ? "⌘K" : "Ctrl K",
    );
    return [
      palette,
      button("Share link", () => copy(location.href, "The link to this view")),
      this.reproduceButton,
      icon("Light or dark", THEME_ICON, toggleTheme),
      icon("Keys", HELP_ICON, showHelp),
    ];
  }

  listen() {
    listen(
      [
        { keys: ["?"], help: "these keys", act: showHelp },
        { keys: ["."], help: "copy this view as Python", act: () => this.copyPython() },
      ],
      forever,
    );
    offer(() => [
      { text: "Runs", hint: "page", act: () => go("/") },
      { text: "Live jobs", hint: "page", act: () => go("/live") },
      { text: "Light or dark", hint: "look", act: toggleTheme },
      {
        text: "Copy the link to this view",
        hint: "share",
        act: () => copy(location.href, "The link to this view"),
      },
      { text: "Copy this view as Python", hint: ".", act: () => this.copyPython() },
      { text: "Keys", hint: "?", act: showHelp },
    ]);
    offer(async () =>
      (await json("/api/runs")).runs.map((/** @type {any} */ run) => ({
        text: `${run.folder}/${run.name}`,
        hint: `run ${run.id}`,
        act: () => go(`/run/${run.id}`),
      })),
    );
    onNews("lost", () => this.beat({ text: "the viewer has stopped", state: "lost" }), forever);
    onNews("hello", () => this.jobs(), forever);
    onNews("runs", () => this.jobs(), forever);
  }

  /** Without a page that knows better, the dot tells of jobs on this machine. */
  async jobs() {
    if (this.isTaken) return;
    const { jobs } = await json("/api/live").catch(() => ({ jobs: [] }));
    const text = jobs.length === 1 ? "1 job is running" : `${jobs.length} jobs are running`;
    if (!this.isTaken) this.beat(jobs.length ? { text, state: "live", href: "/live" } : null);
  }

  copyPython() {
    if (this.python) copy(this.python(), "The Python of this view");
    else tell("There is nothing on this page to load from Python.");
  }
}

function logo() {
  return el(
    "a",
    { class: "logo", href: "/", label: "tensortap, all runs" },
    el("img", { attrs: { src: "/static/icon.svg", alt: "" } }),
    "tensortap",
  );
}

const THEME_ICON = ["M8 1.5a6.5 6.5 0 1 0 0 13z", "M8 1.5a6.5 6.5 0 0 1 0 13"];
const HELP_ICON = ["M5.6 5.8a2.4 2.4 0 1 1 3.5 2.1c-.8.4-1.1.8-1.1 1.7", "M8 12.2v.2"];

/**
 * @param {string} label
 * @param {string[]} paths
 * @param {() => void} act
 */
function icon(label, paths, act) {
  const [first, ...others] = paths;
  const isHalf = paths === THEME_ICON;
  return el(
    "button",
    { type: "button", class: "icon-button", label, title: label, on: { click: act } },
    svg(
      "svg",
      {
        width: 16,
        height: 16,
        viewBox: "0 0 16 16",
        fill: "none",
        stroke: "currentColor",
        "stroke-width": 1.5,
        "stroke-linecap": "round",
        "aria-hidden": "true",
      },
      svg("path", { d: first, fill: isHalf ? "currentColor" : "none" }),
      others.map((d) => svg("path", { d })),
    ),
  );
}
