// The buttons by which a person labels a pair, or one response.

import { button, failure } from "../core/components.js";
import { fill, h, say } from "../core/dom.js";
import { clock } from "../core/format.js";

const MOST_REASON = 2000;

/** The verdicts of a pair, and of one response: [value, text]. */
export const PAIR_VERDICTS = [["left", "Left is better"], ["right", "Right is better"], ["bothGood", "Both good"],
  ["bothBad", "Both bad"]];
export const RESPONSE_VERDICTS = [["wrong", "Wrong"]];

/**
 * A form with a button for each verdict; a pressed one withdraws its label. `read()` returns the present label or null,
 * `save({verdict, reason})` stores it. `refused`: verdicts that do not apply. Read-only: only a present label is shown.
 */
export function labelForm(title, verdicts, { read, save, readOnly, refused = [] }) {
  const buttons = verdicts.map(([verdict, text]) => button(text, () => choose(verdict),
    { kind: "toggle", disabled: refused.includes(verdict) }));
  const reason = h("input", { type: "text", maxlength: MOST_REASON, placeholder: "reason (optional)", "aria-label": "Reason",
    on: { change: () => read() && store(read().verdict) } });
  const facts = h("span", { class: "quiet" });
  const problem = h("div", {});
  const element = h("div", { class: "labelling", role: "group", "aria-label": title },
    !readOnly && [buttons, reason], facts, problem);

  function draw() {
    const label = read();
    verdicts.forEach(([verdict], index) => buttons[index].setAttribute("aria-pressed", String(label?.verdict === verdict)));
    if (document.activeElement !== reason) reason.value = label?.reason ?? "";
    facts.textContent = label ? describe(label) : "";
    element.hidden = readOnly && !label;
  }

  function describe(label) {
    const text = verdicts.find(([verdict]) => verdict === label.verdict)?.[1] ?? label.verdict;
    const words = readOnly ? [text, label.reason] : [];
    return [...words, `by ${label.author}`, clock(new Date(label.time * 1000).toISOString(), Date.now())].filter(Boolean).join(" · ");
  }

  function choose(verdict) {
    return store(read()?.verdict === verdict ? null : verdict);
  }

  async function store(verdict) {
    fill(problem);
    try {
      await save({ verdict, reason: reason.value.trim() });
      say(verdict === null ? "Label withdrawn" : "Label stored");
    } catch (error) {
      fill(problem, failure(error));
    }
    draw();
  }

  draw();
  return element;
}
