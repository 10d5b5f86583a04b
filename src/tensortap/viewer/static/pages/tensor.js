// @ts-check
/** @file One value: any slice of it as a heat map, its figures, and how it was at other steps and on other ranks. */

import { isAborted, json, onNews, query } from "../api.js";
import { button, choice, choose, el, fill, say } from "../dom.js";
import { dtype, shape as shapeWords, size } from "../format.js";
import { listen } from "../keys.js";
import { copy, trouble } from "../messages.js";
import { offer } from "../palette.js";
import { Axes, element, slice, sliceSize, sliceWords } from "../instruments/axes.js";
import { chosen, set } from "../url.js";
import { RANGES, ownRange } from "./colour_range.js";
import { pythonOf } from "./python_slice.js";
import { runHeader } from "./run_header.js";
import { Courses } from "./tensor_courses.js";
import { TensorFigures } from "./tensor_figures.js";
import { Picture, pointed, seenPart } from "./tensor_picture.js";
import { plainText, singleNumber } from "./tensor_plain.js";
import { History, Ranks, series } from "./tensor_series.js";
import { Walk } from "./walk.js";

/** @typedef {import("../app.js").Context} Context */

/** @param {Context} context */
export async function mount(context) {
  const {
    params: [id],
    frame,
    signal,
  } = context;
  const run = await json(`/api/run/${id}`, { signal });
  runHeader(frame, run, context.params[1], signal);
  const page = new TensorPage(context, run);
  frame.python = () => page.python();
  await page.update();
  return page;
}

class TensorPage {
  /** @param {Context} context @param {any} run */
  constructor({ root, params, signal }, run) {
    this.root = root;
    this.run = run;
    this.name = params[1];
    this.signal = signal;
    /** @type {any} */
    this.facts = null;
    this.asked = "";
    this.walk = new Walk(run.id, (values) => this.at(values), signal);
    this.note = el("span", { class: "note clip grow" });
    this.moment = el("span", { class: "mono soft moment" });
    this.download = el("a", { class: "button small", attrs: { download: "" } }, "Download .npy");
    this.modes = choice(
      "Show",
      [
        ["values", "values", "values as colours"],
        ["odd", "NaN map", "only where it is NaN or Inf"],
      ],
      "values",
      (key) => set({ v: key === "values" ? null : key }),
    );
    this.ranges = choice("Colours", RANGES, "auto", (key) => set({ g: key === "auto" ? null : key }));
    this.axesHost = el("div", { class: "axes" });
    this.axes = new Axes(this.axesHost, (part) => this.move(part));
    this.picture = new Picture(signal, {
      onMoved: (seen) => set({ w: seen && seen.map((one) => Number(one.toFixed(1))).join(",") }),
      onRange: (low, high) => set({ g: ownRange(`${low},${high}`) ? `${low},${high}` : null }),
      onDrawn: () => this.drawRanks(),
    });
    this.courses = new Courses(
      (axis, place) => this.go(axis, place),
      (step) => this.at({ s: step }),
      signal,
    );
    this.figures = new TensorFigures(signal, (index) => this.jump(index));
    this.history = new History((step) => this.at({ s: step }), signal);
    this.rankCard = new Ranks((rank) => this.walk.link({ r: rank || null }), signal);
    this.tools = el(
      "div",
      { class: "pair-tools" },
      this.walk.arrows(),
      this.moment,
      el("span", { class: "spacer" }),
      this.modes,
      this.ranges,
    );
    this.body = el(
      "div",
      { class: "tensor-body" },
      this.tools,
      this.axesHost,
      this.picture.element,
      this.courses.element,
    );
    this.card = el(
      "section",
      { class: "card tensor-card", label: "Value" },
      el(
        "div",
        { class: "card-head" },
        el("h1", { class: "mono clip tensor-name", title: this.name }, this.name),
        this.note,
        button("Copy Python", () => copy(this.python(), "The Python of this view"), {
          class: "small",
          title: ".",
        }),
        this.download,
      ),
      this.body,
    );
    this.listen();
  }

  listen() {
    const { signal } = this;
    listen(
      [
        ...this.walk.keys(),
        {
          keys: ["n"],
          help: "NaN map, or values",
          act: () => set({ v: chosen("v") === "odd" ? null : "odd" }),
        },
        { keys: ["0"], help: "the whole slice", act: () => this.picture.view.fit() },
      ],
      signal,
    );
    offer(() => this.walk.everywhere(), signal);
    onNews(
      "refined",
      (news) => news.id === this.run.id && news.row === this.facts?.row && this.picture.renew(),
      signal,
    );
  }

  async update() {
    const asked = query({
      name: this.name,
      step: chosen("s"),
      rank: chosen("r"),
      call: chosen("c"),
      kind: chosen("k"),
    });
    if (asked === this.asked) return this.draw();
    this.asked = asked;
    try {
      const { row } = await json(`/api/run/${this.run.id}/find${asked}`, { signal: this.signal });
      const facts =
        row === this.facts?.row ? this.facts : await json(this.base(row), { signal: this.signal });
      if (asked === this.asked) this.arrive(facts);
    } catch (error) {
      if (!isAborted(error)) fill(this.root, trouble(error, this.name));
    }
    return undefined;
  }

  /** @param {number} row */
  base(row) {
    return `/api/run/${this.run.id}/row/${row}`;
  }

  /** @param {any} facts */
  arrive(facts) {
    const isNew = facts.row !== this.facts?.row;
    this.facts = facts;
    this.walk.here = facts;
    this.say();
    if (!this.card.isConnected) this.layOut();
    const isNumber = facts.is_array && !facts.shape.length;
    this.modes.hidden = this.ranges.hidden = isNumber || !facts.is_array;
    if (!facts.is_array) fill(this.body, this.tools, plainText(facts));
    else if (isNumber) fill(this.body, this.tools, singleNumber(facts), this.courses.element);
    else fill(this.body, this.tools, this.axesHost, this.picture.element, this.courses.element);
    this.draw();
    if (isNew) this.follow(facts.row);
  }

  layOut() {
    fill(
      this.root,
      el(
        "div",
        { class: "tensor-page" },
        this.card,
        this.figures.element,
        el("div", { class: "tensor-wide" }, this.rankCard.element, this.history.element),
      ),
    );
  }

  say() {
    const { facts } = this;
    const call = facts.call ? ` · call ${facts.call}` : "";
    const type = facts.is_array ? `${dtype(facts.dtype)} ${shapeWords(facts.shape)}` : facts.type;
    say(this.note, `${type} · ${facts.kind}${call} · ${size(facts.nbytes)}`);
    const [first, last] = facts.steps;
    say(this.moment, `step ${facts.step}${last > first ? ` of ${first}–${last}` : ""} · rank ${facts.rank}`);
    this.download.href = facts.download;
    this.download.hidden = !facts.is_array;
    this.figures.element.hidden = !facts.is_array;
  }

  /** The same value at other moments. @param {number} row */
  async follow(row) {
    const base = this.base(row);
    try {
      const [steps, ranks] = await Promise.all([
        series(base, "steps", this.signal),
        series(base, "ranks", this.signal),
      ]);
      if (row !== this.facts.row) return;
      this.walk.know(steps, ranks);
      const { name, kind, rank, call, step } = this.facts;
      // A variable that is bound anew within one step has no history over steps.
      const course = steps.some((one) => one.step !== step) ? steps : [];
      this.courses.showSteps(
        course.filter((one) => one.isKnown),
        step,
      );
      this.history.show(`${name} ${kind} ${rank} ${call}`, course);
      this.drawRanks();
    } catch (error) {
      if (!isAborted(error)) throw error;
    }
  }

  part() {
    const { shape, view } = this.facts;
    return slice(shape, chosen("x"), chosen("i") || view?.index);
  }

  draw() {
    const { facts } = this;
    if (!facts?.is_array) return;
    choose(this.modes, chosen("v") || "values");
    choose(this.ranges, chosen("g") || "auto");
    const part = this.part();
    const look = sliceWords(facts.shape, part);
    const base = this.base(facts.row);
    this.figures.show(base, facts, look);
    if (!facts.shape.length) return;
    this.axes.show(facts.shape, part);
    this.axesHost.hidden = facts.shape.length < 2;
    this.picture.show({
      base,
      look,
      size: sliceSize(facts.shape, part),
      isOdd: chosen("v") === "odd",
      range: chosen("g") || "auto",
      part: seenPart(chosen("w")),
      pointed: pointed(chosen("at")),
      element: (row, col) => element(part, row, col),
    });
    this.ranges.hidden = chosen("v") === "odd";
    this.courses.show(base, facts, part);
  }

  drawRanks() {
    const { facts, picture } = this;
    if (!facts?.shape.length || this.walk.ranks.length < 2 || !picture.shown) return;
    this.rankCard.show(`/api/run/${this.run.id}`, this.walk.ranks, {
      look: picture.shown.look,
      size: picture.shown.size,
      range: picture.range,
      rank: facts.rank,
    });
  }

  /** @param {import("../instruments/axes.js").Slice} part */
  move(part) {
    const { shape } = this.facts;
    const { axes } = sliceWords(shape, part);
    const isDefault = axes === `${shape.length - 2},${shape.length - 1}` || shape.length < 2;
    const isTurned = axes !== sliceWords(shape, this.part()).axes;
    set({ i: part.index.join(","), x: isDefault ? null : axes, at: null, ...(isTurned ? { w: null } : {}) });
  }

  /** To a place on one axis: along it where it is seen, else another slice. @param {number} axis @param {number} place */
  go(axis, place) {
    const part = this.part();
    const { view } = this.picture;
    if (axis === part.rows) return view.point({ row: place, col: view.cursor?.col ?? 0 });
    if (axis === part.cols) return view.point({ row: view.cursor?.row ?? 0, col: place });
    return this.move({ ...part, index: part.index.map((word, at) => (at === axis ? place : word)) });
  }

  /** Show one element of the whole. @param {number[]} index */
  jump(index) {
    set({ i: index.join(",") || null });
    const part = this.part();
    if (part.cols < 0) return;
    const [row, col] = [part.rows < 0 ? 0 : index[part.rows], index[part.cols]];
    set({ at: `${row},${col}` });
    this.picture.reveal(row, col);
  }

  /** Another moment of the same value. @param {Record<string, number | null>} values */
  at(values) {
    set({ s: this.facts.step, ...values });
  }

  python() {
    const { facts } = this;
    if (!facts) return "";
    const seen = this.picture.view.isFitted || !facts.is_array ? null : this.picture.view.part();
    return pythonOf(facts, facts.is_array && facts.shape.length ? this.part() : null, seen);
  }
}
