// @ts-check
/** @file A canvas that is as sharp as its screen, and draws at most once per frame; the axis below a drawing. */

import { ink, onTheme } from "../theme.js";

/**
 * @param {HTMLCanvasElement} canvas
 * @param {(context: CanvasRenderingContext2D, width: number, height: number) => void} draw in CSS pixels
 * @param {AbortSignal} signal
 * @returns {() => void} asks for a drawing
 */
export function sketch(canvas, draw, signal) {
  let isAsked = false;
  const paint = () => {
    isAsked = false;
    if (signal.aborted) return;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context, width, height);
  };
  const ask = () => {
    if (isAsked || signal.aborted) return;
    isAsked = true;
    requestAnimationFrame(paint);
  };
  const watch = new ResizeObserver(ask);
  watch.observe(canvas);
  signal.addEventListener("abort", () => watch.disconnect());
  onTheme(ask, signal);
  return ask;
}

/**
 * A small text beside the pointer.
 * @param {AbortSignal} signal
 */
export function tip(signal) {
  const made = document.createElement("div");
  made.className = "tip";
  made.hidden = true;
  document.body.append(made);
  signal.addEventListener("abort", () => made.remove());
  return {
    /** @param {string} text @param {number} x @param {number} y */
    show(text, x, y) {
      made.textContent = text;
      made.hidden = false;
      const { offsetWidth, offsetHeight } = made;
      const left = x + 14 + offsetWidth > innerWidth ? x - 14 - offsetWidth : x + 14;
      const top = y + 16 + offsetHeight > innerHeight ? y - 12 - offsetHeight : y + 16;
      made.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
    },
    hide() {
      made.hidden = true;
    },
  };
}

export const AXIS_HEIGHT = 16;

/**
 * A line below a drawing, with a label at each end and one between them.
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {[string, string, string]} labels
 */
export function axis(context, width, height, [low, quantity, high]) {
  context.fillStyle = ink("line");
  context.fillRect(0, height - AXIS_HEIGHT, width, 1);
  context.font = `10.5px ${ink("mono")}`;
  context.fillStyle = ink("faint");
  context.textBaseline = "bottom";
  for (const [text, at, align] of /** @type {[string, number, CanvasTextAlign][]} */ ([
    [low, 0, "left"],
    [width < 190 ? "" : quantity, width / 2, "center"],
    [high, width, "right"],
  ])) {
    context.textAlign = align;
    context.fillText(text, at, height);
  }
}
