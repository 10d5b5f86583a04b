// @ts-check
/** @file Elements, made from words and never from markup: what a tensor is called can not become a script. */

/** @typedef {Node | string | number | null | undefined | false} Leaf */
/** @typedef {Leaf | Leaf[] | Leaf[][] | (Leaf | Leaf[])[]} Child */
/**
 * @typedef {{
 *   class?: string, title?: string, id?: string, href?: string, role?: string, type?: string, label?: string,
 *   data?: Record<string, string | number>, style?: Record<string, string>, attrs?: Record<string, string | number>,
 *   on?: Record<string, (event: any) => void>, disabled?: boolean, hidden?: boolean,
 * }} Props
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, props, ...children) {
  const made = document.createElement(tag);
  dress(made, props || {});
  append(made, children);
  return made;
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attrs
 * @param {...Child} children
 */
export function svg(tag, attrs, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attrs)) made.setAttribute(name, String(value));
  append(made, children);
  return /** @type {SVGElement} */ (made);
}

/**
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
  return parent;
}

/**
 * @param {Element} parent
 * @param {Child[]} children
 */
export function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Change the text only where it is another: a table in motion touches thousands of cells.
 * @param {Element} cell
 * @param {string} text
 */
export function say(cell, text) {
  if (cell.textContent !== text) cell.textContent = text;
}

/**
 * @param {Element} made
 * @param {Props} props
 */
function dress(made, props) {
  const { class: classes, data, style, attrs, on, label, disabled, hidden, ...plain } = props;
  if (classes) made.setAttribute("class", classes);
  if (label) made.setAttribute("aria-label", label);
  for (const [name, value] of Object.entries({ ...plain, ...attrs })) made.setAttribute(name, String(value));
  for (const [name, value] of Object.entries(data || {})) made.setAttribute(`data-${name}`, String(value));
  for (const [name, value] of Object.entries(style || {})) {
    /** @type {HTMLElement} */ (made).style.setProperty(name, value);
  }
  for (const [name, listener] of Object.entries(on || {})) made.addEventListener(name, listener);
  if (disabled) made.setAttribute("disabled", "");
  if (hidden) made.setAttribute("hidden", "");
}

/** Where there is no room for a long name, its end stays: it says what it is. @param {string} name @param {"b" | "span"} [tag] */
export function longName(name, tag = "span") {
  const at = name.lastIndexOf(".");
  const parts = at > 0 ? [name.slice(0, at), name.slice(at)] : [name];
  return el(
    tag,
    { class: "mono long-name", title: name },
    parts.map((part) => el("span", { class: "clip" }, part)),
  );
}

/**
 * @param {string} text
 * @param {(event: MouseEvent) => void} act
 * @param {Props} [props]
 */
export function button(text, act, props = {}) {
  return el(
    "button",
    { type: "button", ...props, class: `button ${props.class || ""}`, on: { click: act } },
    text,
  );
}

/**
 * A row of buttons of which one is on.
 * @template {string} Key
 * @param {string} label
 * @param {[Key, string, string?][]} choices key, text, explanation
 * @param {Key} chosen
 * @param {(key: Key) => void} act
 */
export function choice(label, choices, chosen, act) {
  const made = choices.map(([key, text, title]) =>
    el(
      "button",
      {
        type: "button",
        title: title || "",
        class: "choice",
        data: { key },
        attrs: { "aria-pressed": String(key === chosen) },
        on: { click: () => act(key) },
      },
      text,
    ),
  );
  return el("div", { class: "choices", role: "group", label }, made);
}

/**
 * @param {Element} group what `choice` made
 * @param {string} chosen
 */
export function choose(group, chosen) {
  for (const one of group.querySelectorAll("[data-key]")) {
    one.setAttribute("aria-pressed", String(one.getAttribute("data-key") === chosen));
  }
}
