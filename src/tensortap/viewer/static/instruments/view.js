// @ts-check
/** @file Which part of a matrix is seen, and how large: shared by heat maps that move together. */

const WIDEST = 72; // pixels of one element, when its value is written into it
const TALLEST = 26;

export class View {
  /**
   * @param {number} rows
   * @param {number} cols
   */
  constructor(rows, cols) {
    this.rows = rows;
    this.cols = cols;
    this.y = 0;
    this.x = 0;
    this.width = 1;
    this.height = 1;
    this.sy = 1;
    this.sx = 1;
    /** @type {{row: number, col: number} | null} */
    this.cursor = null;
    this.isFitted = true;
    /** @type {number[] | null} */
    this.wanted = null;
    /** @type {Set<() => void>} */
    this.followers = new Set();
  }

  /** What is seen stays the same part, however large it is drawn. @param {number} width @param {number} height */
  resize(width, height) {
    if (width === this.width && height === this.height) return;
    const part = this.wanted || this.part();
    this.width = Math.max(width, 1);
    this.height = Math.max(height, 1);
    this.wanted = null;
    if (this.isFitted) this.fit();
    else this.frame(part);
  }

  /** Rows and columns that are seen: top, bottom, left, right. */
  part() {
    return [this.y, this.y + this.height / this.sy, this.x, this.x + this.width / this.sx];
  }

  /** Show these rows and columns. @param {number[]} part */
  frame([top, bottom, left, right]) {
    if (!(bottom > top && right > left && bottom <= this.rows + 0.01 && right <= this.cols + 0.01)) return;
    this.isFitted = false;
    // Before the first drawing nobody knows how large it is.
    if (this.width === 1) this.wanted = [top, bottom, left, right];
    this.sx = this.width / (right - left);
    this.sy = this.height / (bottom - top);
    [this.x, this.y] = [left, top];
    this.move(0, 0);
  }

  fit() {
    this.isFitted = true;
    this.sx = this.width / this.cols;
    this.sy = this.height / this.rows;
    this.x = this.y = 0;
    this.tell();
  }

  /**
   * @param {number} factor
   * @param {number} px the point that stays where it is
   * @param {number} py
   */
  zoom(factor, px, py) {
    const [atX, atY] = [this.x + px / this.sx, this.y + py / this.sy];
    this.sx = between(this.sx * factor, this.width / this.cols, Math.max(WIDEST, this.width / this.cols));
    this.sy = between(this.sy * factor, this.height / this.rows, Math.max(TALLEST, this.height / this.rows));
    this.isFitted = this.sx <= this.width / this.cols && this.sy <= this.height / this.rows;
    this.x = atX - px / this.sx;
    this.y = atY - py / this.sy;
    this.move(0, 0);
  }

  /** By pixels. @param {number} dx @param {number} dy */
  move(dx, dy) {
    this.x = between(this.x - dx / this.sx, 0, Math.max(0, this.cols - this.width / this.sx));
    this.y = between(this.y - dy / this.sy, 0, Math.max(0, this.rows - this.height / this.sy));
    this.tell();
  }

  /** Bring an element into sight, large enough to be read. @param {number} row @param {number} col */
  show(row, col) {
    this.sx = Math.max(this.sx, Math.min(WIDEST, this.width));
    this.sy = Math.max(this.sy, Math.min(TALLEST, this.height));
    this.isFitted = false;
    this.x = col + 0.5 - this.width / this.sx / 2;
    this.y = row + 0.5 - this.height / this.sy / 2;
    this.cursor = { row, col };
    this.move(0, 0);
  }

  /** @param {{row: number, col: number} | null} cursor */
  point(cursor) {
    const isThere =
      cursor && cursor.row >= 0 && cursor.row < this.rows && cursor.col >= 0 && cursor.col < this.cols;
    this.cursor = isThere ? cursor : null;
    this.tell();
  }

  /** @param {number} px @param {number} py */
  at(px, py) {
    const [row, col] = [Math.floor(this.y + py / this.sy), Math.floor(this.x + px / this.sx)];
    return row >= 0 && row < this.rows && col >= 0 && col < this.cols ? { row, col } : null;
  }

  tell() {
    for (const follower of this.followers) follower();
  }
}

/** @param {number} value @param {number} low @param {number} high */
function between(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
