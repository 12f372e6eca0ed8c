// Components that several views share.

import { h } from "./dom.js";
import { count } from "./format.js";
import { icon } from "./icons.js";

/** A phase as a coloured word with its icon. */
export function phaseBadge(phase) {
  const word = phase || "Unseen";
  return h("span", { class: "phase", data: { phase: word } }, icon(word), word);
}

/** Progress in steps; the bar is hidden from screen readers, which read the words. */
export function stepBar({ step, most, share }) {
  const words = most ? `${count(step)} / ${count(most)}` : `${count(step)}`;
  return h("span", { class: "steps" },
    h("span", { class: "track", "aria-hidden": "true" },
      h("span", { class: "done", vars: { "--share": share ?? 0 } })),
    h("span", { class: "words" }, words));
}

/** A notice in place of missing content. `remedy`: advice; `action`: a button. */
export function notice(title, remedy = "", action = null) {
  return h("div", { class: "notice" }, h("p", { class: "what" }, title), remedy && h("p", {}, remedy), action);
}

/** An error as a notice. `again`: callback of its retry button. */
export function failure(error, again = null) {
  const title = error.title && error.title !== error.message ? `${error.title}: ${error.message}` : error.message;
  const places = (error.errors ?? []).map(({ path, message }) => h("li", {}, h("code", {}, path), " ", message));
  return h("div", { class: "notice bad", role: "alert" },
    h("p", { class: "what" }, title),
    places.length > 0 && h("ul", {}, places),
    again && button("Try again", again));
}

/** A button. `kind`: primary, danger, quiet or none. */
export function button(text, press, { kind = "", ...attributes } = {}) {
  return h("button", { type: "button", class: `button ${kind}`.trim(), on: { click: press }, ...attributes }, text);
}

/** A field with its label. */
export function field(text, control, { wide = false } = {}) {
  return h("label", { class: wide ? "field wide" : "field" }, h("span", { class: "label" }, text), control);
}

/** A select box; `options`: [[value, text], ...]. */
export function select(options, value, change, attributes = {}) {
  return h("select", { ...attributes, on: { change: (event) => change(event.target.value) } },
    options.map(([held, text]) => h("option", { value: held, selected: held === value }, text)));
}

/** A table with a caption; `columns`: [{title, class}], `rows`: lists of cells, the first of which is the row header. */
export function table(caption, columns, rows, { hideCaption = false, name = "" } = {}) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: `data ${name}`.trim() },
      h("caption", { class: hideCaption ? "unseen" : "" }, caption),
      h("thead", {}, h("tr", {}, columns.map(
        ({ title, class: style }) => h("th", { scope: "col", class: style ?? "" }, title)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, index) => (index === 0
        ? h("th", { scope: "row", class: columns[0].class ?? "" }, cell)
        : h("td", { class: columns[index].class ?? "", data: { title: columns[index].title } }, cell))))))));
}
