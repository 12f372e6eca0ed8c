// Two responses to one prompt, side by side, with their differences marked.

import { number } from "../core/format.js";
import { h } from "../core/dom.js";
import { signed } from "./metric_table.js";

const UNITS = { word: "", line: "Long responses: compared line by line.",
  text: "These responses are too long to be compared." };

/** `heading`: of the pair; `titles`: of both sides; `forms`: for the labels {pair, left, right}, each an element or null. */
export function pairCard(pair, heading, titles, forms) {
  const sides = [["left", titles[0], "del"], ["right", titles[1], "ins"]];
  return h("article", { class: "compared", "aria-label": heading },
    h("div", { class: "row head" }, h("h3", {}, heading), pair.set && h("span", { class: "tag" }, pair.set),
      h("span", { class: "difference" }, pair.difference === null ? "no difference known" : `right minus left ${signed(pair.difference)}`)),
    h("pre", { class: "text prompt" }, pair.prompt),
    UNITS[pair.unit] && h("p", { class: "quiet" }, UNITS[pair.unit]),
    h("div", { class: "pair" }, sides.map(([side, title, mark]) => response(pair[side], title, mark, forms[side]))),
    forms.pair);
}

function response(sample, title, mark, form) {
  const scores = Object.entries(sample.scores);
  return h("section", { class: "response", "aria-label": title },
    h("h4", {}, title, " ", sample.truncated && h("span", { class: "tag warn" }, "truncated"),
      sample.shortened && h("span", { class: "tag warn" }, "the middle is left out")),
    h("dl", { class: "facts" }, scores.map(([name, value]) => h("div", {}, h("dt", {}, name),
      h("dd", {}, value === null ? "does not apply" : number(value))))),
    h("pre", { class: "text" }, sample.parts.map(({ text, changed }) => (changed ? h(mark, {}, text) : text))),
    Object.entries(sample.explanations).map(([name, text]) =>
      [h("h5", {}, `Explanation of ${name}`), h("pre", { class: "text explanation" }, text)]), form);
}
