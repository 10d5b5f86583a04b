// @ts-check
/** @file A running job: what it could show, what comes of its taps, and what that costs it. */

import { isAborted, json, whileSeen } from "../api.js";
import { button, el, fill, say } from "../dom.js";
import { count, number, plural } from "../format.js";
import { listen } from "../keys.js";
import { tell, words } from "../messages.js";
import { chosen, set } from "../url.js";
import { Catalog, WHY_NOT } from "./live_catalog.js";
import { Focus } from "./live_focus.js";
import { jobsPage } from "./live_jobs.js";
import { Meters } from "./live_meters.js";
import { Wall } from "./live_wall.js";

/** @typedef {import("../app.js").Context} Context */

/** @param {Context} context */
export async function mount(context) {
  const [id] = context.params;
  if (!id) return jobsPage(context);
  const { signal } = context;
  const [{ actions }, job] = await Promise.all([
    json("/api/live", { signal }),
    json(`/api/live/${id}`, { signal }),
  ]);
  const page = new LivePage(context, job, actions);
  page.update();
  return page;
}

class LivePage {
  /** @param {Context} context @param {any} job @param {boolean} isAllowed */
  constructor({ root, frame, signal }, job, isAllowed) {
    this.job = job;
    this.frame = frame;
    this.signal = signal;
    this.base = `/api/live/${job.id}`;
    this.catalog = new Catalog(this.base, isAllowed, signal);
    this.meters = new Meters((tap) => this.catalog.post("untap", { tap }), isAllowed, signal);
    this.wall = new Wall(
      this.base,
      (key) => set({ t: chosen("t") === key ? null : key, i: null, x: null }, { push: true }),
      (seconds) => this.meters.shown(seconds),
      signal,
    );
    this.focus = new Focus(this.base, signal);
    this.ended = el("p", { class: "live-ended", role: "status", hidden: true });
    this.freezer = button("Freeze", () => this.freeze(), {
      class: "small",
      title: "stop the picture, not the job (space)",
      attrs: { "aria-pressed": "false" },
    });
    this.recorder = button("Record", () => this.record(), {
      class: "small",
      disabled: !isAllowed,
      title: isAllowed ? "write what comes into a run" : WHY_NOT,
      attrs: { "aria-pressed": "false" },
    });
    this.catalog.onEnding = (tap, isOver) => this.wall.forget(tap, isOver);
    fill(
      root,
      el("h1", { class: "unseen" }, `Live: ${job.name}`),
      el("div", { class: "live-page" }, this.catalog.element, this.middle(), this.meters.element),
    );
    frame.show({
      crumbs: [{ text: "Runs", href: "/" }, { text: "Live", href: "/live" }, { text: job.name }],
      title: `${job.name} · live`,
    });
    frame.python = () =>
      `import tensortap as tt\n\ns = tt.attach(${job.pid})\nt = s.tap(${JSON.stringify(this.focus.last?.name || "*")})`;
    signal.addEventListener("abort", () => frame.takePulse(null));
    this.meters.showTaps(job.taps);
    this.listen();
    whileSeen(() => this.open(), { signal });
  }

  middle() {
    const { job } = this;
    return el(
      "div",
      { class: "live-middle" },
      el(
        "section",
        { class: "card live-head", label: "The job" },
        el("b", null, job.name),
        el("span", { class: "mono soft clip grow", title: job.folder }, job.program),
        el("span", { class: "quiet" }, `${plural(job.ranks.length, "rank")} · process ${job.pid}`),
        this.freezer,
        this.recorder,
      ),
      this.ended,
      this.focus.element,
      this.wall.element,
    );
  }

  listen() {
    listen(
      [
        { keys: [" "], help: "freeze the picture, or let it go on", act: () => this.freeze() },
        {
          keys: ["f", "t"],
          help: "search the catalog, to place a tap",
          act: () => this.catalog.search.focus(),
        },
        { keys: ["Escape"], help: "close the chosen value", act: () => set({ t: null, i: null, x: null }) },
      ],
      this.signal,
    );
  }

  update() {
    this.catalog.update();
    const tile = this.wall.tiles.get(chosen("t") || "");
    this.focus.show(tile?.last || null);
    this.focus.draw();
  }

  isOver = false;

  open() {
    const stream = new EventSource(`${this.base}/stream`);
    const on = (/** @type {string} */ word, /** @type {(data: any) => void} */ act) =>
      stream.addEventListener(word, (event) => act(JSON.parse(/** @type {MessageEvent} */ (event).data)));
    on("meters", (told) => this.measure(told));
    on("records", ({ records }) => this.come(records));
    on("gone", ({ text }) => {
      stream.close();
      this.leave(text);
    });
    if (this.isOver) stream.close();
    return stream;
  }

  /** @param {import("./live_wall.js").Came[]} records */
  come(records) {
    if (this.wall.isFrozen) return;
    this.wall.come(records);
    const wanted = chosen("t");
    const newest = records.find((one) => one.key === wanted);
    if (newest) this.focus.show(newest);
  }

  /** @param {any} told */
  measure(told) {
    if (!told.open) return;
    this.catalog.know(told.taps);
    this.meters.show(told);
    const lost = this.meters.lostOf(told);
    this.frame.takePulse({
      text: `live · ${number(told.rate)} steps/s · ${count(lost)} not shown`,
      state: "live",
    });
  }

  /** @param {string} text */
  leave(text) {
    this.isOver = true;
    say(this.ended, `${this.job.name} has ended: ${text}. What came last stays here.`);
    this.ended.hidden = false;
    this.frame.takePulse({ text: "ended", state: "lost" });
  }

  freeze() {
    this.wall.isFrozen = !this.wall.isFrozen;
    this.freezer.setAttribute("aria-pressed", String(this.wall.isFrozen));
    say(this.freezer, this.wall.isFrozen ? "Frozen" : "Freeze");
  }

  async record() {
    const isOn = this.recorder.getAttribute("aria-pressed") !== "true";
    try {
      const { path } = await json(`${this.base}/record`, { post: { on: isOn }, signal: this.signal });
      this.recorder.setAttribute("aria-pressed", String(isOn));
      say(this.recorder, isOn ? "Recording" : "Record");
      tell(isOn ? `What comes is written to ${path}.` : "The run is closed.");
    } catch (error) {
      if (!isAborted(error)) tell(words(error), { isBad: true });
    }
  }
}
