// A sample as card, and as line of a list.

import { h } from "../core/dom.js";
import { excerpt, number } from "../core/format.js";
import { tokenText } from "./token_text.js";

const PROMPT_EXCERPT = 70;
const RESPONSE_EXCERPT = 110;

/** The complete sample under a heading. */
export function sampleCard(sample, heading) {
  return h("article", { class: "sample", "aria-label": heading },
    h("h3", {}, heading, tags(sample)), facts(sample),
    h("h4", {}, "Prompt"), h("pre", { class: "text prompt" }, sample.prompt),
    h("h4", {}, "Response"), tokenText(sample), explanations(sample));
}

function explanations(sample) {
  return Object.entries(sample.explanations ?? {}).flatMap(([name, text]) =>
    [h("h4", {}, `Reward ${name}`), h("pre", { class: "text explanation" }, text)]);
}

function facts(sample) {
  const rewards = Object.entries(sample.rewards ?? {});
  const pairs = [["Reward", number(sample.reward)], ...rewards.map(([name, value]) => [`Reward ${name}`, value === null ? "does not apply" : number(value)]),
    ["Weight version", sample.weightVersion < 0 ? "reference" : String(sample.weightVersion ?? "–")], ["Step", String(sample.step)],
    sample.tokens?.length && ["Tokens", String(sample.tokens.length)], sample.groupId && ["Group", sample.groupId]];
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name),
    h("dd", {}, value))));
}

function tags(sample) {
  return [sample.truncated && h("span", { class: "tag warn" }, "truncated"),
    sample.purpose && sample.purpose !== "train" && sample.purpose !== "training"
      && h("span", { class: "tag" }, sample.purpose)];
}

/** The sample as one line: a button that opens it. */
export function sampleLine(sample, chosen, open) {
  return h("li", {}, h("button", { type: "button", class: "sampleline", "aria-pressed": String(chosen),
    on: { click: open } },
  h("span", { class: "figure" }, number(sample.reward)),
  h("span", { class: "what" }, h("span", { class: "prompt" }, excerpt(sample.prompt, PROMPT_EXCERPT) || "(empty prompt)"),
    h("span", { class: "answer" }, excerpt(sample.response, RESPONSE_EXCERPT) || "(empty response)")),
  tags(sample)));
}
