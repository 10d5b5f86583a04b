// @ts-check
/** @file Moving about in a heat map, by wheel, by hand and by keys. */

/** @typedef {import("./view.js").View} View */

/**
 * Wheel zooms, drag moves, double click shows all; the arrow keys move the cursor.
 * @param {HTMLCanvasElement} canvas
 * @param {View} view
 * @param {AbortSignal} signal
 */
export function handle(canvas, view, signal) {
  /** @type {{x: number, y: number} | null} */
  let held = null;
  const on = (/** @type {string} */ name, /** @type {(event: any) => void} */ act) =>
    canvas.addEventListener(name, act, { signal, passive: false });
  on("wheel", (event) => {
    event.preventDefault();
    view.zoom(Math.exp(-event.deltaY * 0.0022), event.offsetX, event.offsetY);
  });
  on("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY };
    canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    if (held) {
      view.move(event.clientX - held.x, event.clientY - held.y);
      held = { x: event.clientX, y: event.clientY };
    }
    view.point(view.at(event.offsetX, event.offsetY));
  });
  on("pointerup", () => (held = null));
  on("pointercancel", () => (held = null));
  on("dblclick", () => view.fit());
  on("keydown", (event) => steer(event, view));
}

/** @param {KeyboardEvent} event @param {View} view */
function steer(event, view) {
  const [row, col] = [view.cursor?.row ?? 0, view.cursor?.col ?? 0];
  const moves = /** @type {Record<string, [number, number]>} */ ({
    ArrowUp: [-1, 0],
    ArrowDown: [1, 0],
    ArrowLeft: [0, -1],
    ArrowRight: [0, 1],
  });
  const move = moves[event.key];
  if (move) {
    view.point({
      row: Math.min(Math.max(row + move[0], 0), view.rows - 1),
      col: Math.min(Math.max(col + move[1], 0), view.cols - 1),
    });
  } else if (event.key === "+" || event.key === "=") view.zoom(1.5, view.width / 2, view.height / 2);
  else if (event.key === "-") view.zoom(1 / 1.5, view.width / 2, view.height / 2);
  else if (event.key === "Home") view.fit();
  else return;
  event.preventDefault();
  event.stopPropagation();
}
