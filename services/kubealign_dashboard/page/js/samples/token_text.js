// A response as tokens, coloured by one of their values.

import { fill, h, newId } from "../core/dom.js";
import { number } from "../core/format.js";
import { select } from "../core/components.js";
import { CHOICES, choicesOf, scale, visible } from "./token_colours.js";

// The choice is kept for the next sample.
let preferred = CHOICES[0].name;

/** The response of a sample. It is one tab stop: arrow keys move between tokens. */
export function tokenText(sample) {
  const choices = choicesOf(sample);
  if (!sample.tokens?.length || !choices.length) {
    return h("div", { class: "response" }, h("pre", { class: "text" }, sample.response),
      h("p", { class: "quiet" }, "No token values were kept for this sample."));
  }
  return new TokenText(sample, choices).element;
}

class TokenText {
  constructor(sample, choices) {
    this._sample = sample;
    this._choices = choices;
    this._at = -1;
    const id = newId("token");
    this._tokens = sample.tokens.map((text, index) => h("span", {
      class: "token", role: "option", id: `${id}-${index}`, "aria-selected": "false", data: { index } }, visible(text)));
    this._box = h("div", { class: "text tokens", role: "listbox", tabindex: "0",
      "aria-label": "Response, token by token", on: {
        keydown: (event) => this._pressed(event),
        pointerover: (event) => this._over(event),
        click: (event) => this._over(event),
        focus: () => this._at < 0 && this._choose(0),
      } }, this._tokens);
    this._reading = h("p", { class: "reading", role: "status" }, "Point at a token, or move with the arrow keys.");
    this._legend = h("div", { class: "scale" });
    const chosen = choices.find(({ name }) => name === preferred) ?? choices[0];
    this.element = h("div", { class: "response" },
      h("div", { class: "row" },
        h("label", { class: "field" }, h("span", { class: "label" }, "Colour by"),
          select(choices.map(({ name, label }) => [name, label]), chosen.name, (name) => {
            preferred = name;
            this._paint(choices.find((choice) => choice.name === name));
          })),
        this._legend),
      this._box, this._reading);
    this._paint(chosen);
  }

  _paint(choice) {
    this._choice = choice;
    const values = this._sample.tokenValues[choice.name];
    const { end, of } = scale(values, choice.two);
    this._tokens.forEach((token, index) => {
      const painted = of(values[index]);
      token.classList.toggle("unknown", painted === null);
      token.dataset.tone = painted?.tone ?? "none";
      token.style.setProperty("--strength", painted?.strength ?? 0);
    });
    fill(this._legend,
      choice.two && h("span", {}, number(-end)),
      choice.two && h("span", { class: "ramp low", "aria-hidden": "true" }),
      h("span", {}, "0"), h("span", { class: "ramp high", "aria-hidden": "true" }),
      h("span", {}, `${choice.name.endsWith("logprobs") ? number(-end) : number(end)}${choice.unit && ` ${choice.unit}`}`),
      h("span", { class: "quiet" }, choice.means));
  }

  _over(event) {
    const token = event.target.closest(".token");
    if (token) this._choose(Number(token.dataset.index));
  }

  _pressed(event) {
    const last = this._tokens.length - 1;
    const next = { ArrowRight: this._at + 1, ArrowDown: this._at + 1, ArrowLeft: this._at - 1, ArrowUp: this._at - 1,
      Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this._choose(Math.min(last, Math.max(0, next)));
  }

  _choose(index) {
    this._tokens[this._at]?.setAttribute("aria-selected", "false");
    this._at = index;
    const token = this._tokens[index];
    token.setAttribute("aria-selected", "true");
    this._box.setAttribute("aria-activedescendant", token.id);
    const values = this._choices.map(({ name, label }) => `${label} ${number(this._sample.tokenValues[name][index])}`);
    this._reading.textContent =
      `Token ${index + 1} of ${this._tokens.length}, ${JSON.stringify(this._sample.tokens[index])}: ${values.join(" · ")}`;
  }
}
