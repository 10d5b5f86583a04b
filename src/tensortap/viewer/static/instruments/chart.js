// @ts-check
/** @file Charts by plotly, which is fetched when the first one is drawn. */

import { ink, onTheme } from "../theme.js";

/** `colour` is the name of an ink, so that a chart follows the look of the page. */
/** @typedef {{x: ArrayLike<number>, y: ArrayLike<number | null>, name: string, colour: string, mode?: string, dash?: string, fill?: string, opacity?: number}} Trace */
/** @typedef {{title?: string, x?: string, y?: string, isLog?: boolean, height?: number, onPick?: (x: number) => void}} ChartLook */

const FEW_STEPS = 8; // each of them has its tick

/** @type {Promise<any> | null} */
let plotly = null;

function load() {
  plotly ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = () => resolve(/** @type {any} */ (window).Plotly);
    script.onerror = () => reject(new Error("charts need plotly: pip install 'tensortap[view]'"));
    document.head.append(script);
  });
  return plotly;
}

/**
 * Draw lines into an element; a later call with the same element moves on from there.
 * @param {HTMLElement} host
 * @param {Trace[]} traces
 * @param {ChartLook} look
 * @param {AbortSignal} signal
 */
export async function chart(host, traces, look, signal) {
  const library = await load();
  if (signal.aborted) return;
  const draw = () =>
    library.react(host, traces.map(line), layout(traces, look), { displayModeBar: false, responsive: true });
  await draw();
  onTheme(draw, signal);
  signal.addEventListener("abort", () => library.purge(host));
  if (look.onPick)
    /** @type {any} */ (host).on("plotly_click", (/** @type {any} */ event) =>
      look.onPick?.(event.points[0].x),
    );
}

/** Plotly reads some markup in texts; names are names. @param {string} text */
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
}

/** @param {Trace} trace */
function line(trace) {
  return {
    type: "scatter",
    x: trace.x,
    y: trace.y,
    name: plain(trace.name),
    mode: trace.mode || "lines",
    opacity: trace.opacity ?? 1,
    fill: trace.fill,
    line: { color: ink(trace.colour), width: 1.6, dash: trace.dash },
    marker: { color: ink(trace.colour), size: 4 },
    hovertemplate: "%{x}: %{y:.5g}",
  };
}

/** @param {Trace[]} traces */
function isShort(traces) {
  const steps = traces.flatMap(({ x }) => [x[0], x[x.length - 1]]).filter(Number.isFinite);
  return Math.max(...steps) - Math.min(...steps) <= FEW_STEPS;
}

/** @param {Trace[]} traces @param {ChartLook} look */
function layout(traces, look) {
  const axis = {
    gridcolor: ink("line-soft"),
    linecolor: ink("line"),
    zerolinecolor: ink("line"),
    tickfont: { size: 10.5 },
    automargin: true,
  };
  return {
    height: look.height || 180,
    margin: { l: 44, r: 18, t: look.title ? 26 : 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: ink("sans"), color: ink("soft"), size: 11 },
    title: look.title
      ? { text: plain(look.title), font: { size: 12, color: ink("text") }, x: 0.01, xanchor: "left" }
      : undefined,
    xaxis: {
      ...axis,
      // Between two steps there is none.
      ...(look.x === "step" && { tickformat: "d", ...(isShort(traces) && { dtick: 1 }) }),
      title: look.x ? { text: look.x, font: { size: 10.5 } } : undefined,
    },
    yaxis: {
      ...axis,
      type: look.isLog ? "log" : "linear",
      exponentformat: "e",
      title: look.y ? { text: look.y } : undefined,
    },
    showlegend: traces.length > 1,
    legend: { orientation: "h", y: 1.15, font: { size: 10.5 } },
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: ink("raised"),
      bordercolor: ink("line"),
      font: { color: ink("text"), family: ink("mono"), size: 11 },
    },
  };
}
