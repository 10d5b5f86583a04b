// @ts-check
/** @file The header on every page of one run: its name, the way back, how it is doing, how to make it again. */

import { onNews } from "../api.js";
import { count, runName } from "../format.js";

/**
 * @param {import("../frame.js").Frame} frame
 * @param {any} run
 * @param {string} page
 * @param {AbortSignal} signal
 */
export function runHeader(frame, run, page, signal) {
  const name = runName(run.path);
  const crumbs = [
    { text: "Runs", href: "/" },
    page ? { text: name, href: `/run/${run.id}` } : { text: name },
  ];
  frame.show({
    crumbs: page ? [...crumbs, { text: page }] : crumbs,
    chips: [],
    title: page ? `${page} · ${name}` : name,
  });
  if (run.reproduce) frame.canReproduce(`Reproduce ${name}`, [run.reproduce]);
  frame.python = () => `import tensortap as tt\n\nrun = tt.Run(${JSON.stringify(run.path)})`;
  watch(frame, run, signal);
}

/**
 * How fast the run grows, while it does.
 * @param {import("../frame.js").Frame} frame
 * @param {any} run
 * @param {AbortSignal} signal
 */
function watch(frame, run, signal) {
  let added = 0;
  let since = performance.now();
  if (run.state === "writing") frame.takePulse({ text: "live", state: "live" });
  onNews(
    "run",
    (news) => {
      if (news.id !== run.id) return;
      added += news.added;
      const seconds = Math.max((performance.now() - since) / 1000, 0.5);
      frame.takePulse({
        text: `live ${count(Math.round(added / seconds))} cap/s · ${count(news.rows)} captures`,
        state: "live",
      });
      if (seconds > 5) [added, since] = [0, performance.now()];
    },
    signal,
  );
  signal.addEventListener("abort", () => frame.takePulse(null));
}
