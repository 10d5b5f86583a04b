// @ts-check
/** @file The jobs that listen on this machine. */

import { json, onNews } from "../api.js";
import { el, fill } from "../dom.js";
import { ago, plural } from "../format.js";

const HOW = 'import tensortap as tt\n\ntt.listen("pretraining")\ntt.expose(model)';

/** @param {import("../app.js").Context} context */
export async function jobsPage({ root, frame, signal }) {
  frame.show({ crumbs: [{ text: "Runs", href: "/" }, { text: "Live" }], title: "Live" });
  const draw = async () => {
    const { jobs } = await json("/api/live", { signal });
    fill(root, jobs.length ? list(jobs) : empty());
  };
  onNews("runs", () => draw().catch(() => {}), signal);
  await draw();
  return {};
}

/** @param {any[]} jobs */
function list(jobs) {
  return [
    el(
      "div",
      { class: "page-title" },
      el("h1", null, "Live"),
      el("span", { class: "quiet" }, `${plural(jobs.length, "job")} on this machine`),
    ),
    el("ul", { class: "jobs" }, jobs.map(entry)),
  ];
}

/** @param {any} job */
function entry(job) {
  return el(
    "li",
    null,
    el(
      "a",
      { class: "card job", href: `/live/${job.id}` },
      el("span", { class: "dot is-live", attrs: { "aria-hidden": "true" } }),
      el("b", { class: "clip" }, job.name),
      el("span", { class: "mono soft clip grow", title: job.folder }, job.program),
      el("span", { class: "quiet" }, plural(job.ranks.length, "rank")),
      el("span", { class: "quiet" }, `process ${job.pid}`),
      el("span", { class: "quiet" }, ago(job.started)),
    ),
  );
}

function empty() {
  return el(
    "section",
    { class: "empty" },
    el("h1", null, "No job listens on this machine"),
    el(
      "p",
      { class: "soft" },
      "Two lines in a program open it to this page. Nothing is captured before a tap is placed, and nothing is opened on the network.",
    ),
    el("pre", null, HOW),
    el("p", { class: "quiet" }, "This page shows it as soon as it listens."),
  );
}
