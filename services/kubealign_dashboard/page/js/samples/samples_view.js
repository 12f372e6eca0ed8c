// The samples of a step, one of them in full, compared with the same prompt at another step.

import { fill, h, say } from "../core/dom.js";
import { button, failure, field, notice } from "../core/components.js";
import { sampleCard, sampleLine } from "./sample_card.js";
import { counterpart, nearest } from "./sample_order.js";
import { samplesOf } from "./sample_source.js";

const AGAIN_MS = 1500;

export class SamplesView {
  /** `go` changes the page's state. `beside`: shown as a closable panel next to the curves. */
  constructor(store, go, { beside = false } = {}) {
    this._store = store;
    this._go = go;
    this._beside = beside;
    this._over = new AbortController();
    this._found = null;
    this._versus = null;
    this._step = this._number("Step", (step) => go({ step, sample: "" }), "newest");
    this._other = this._number("Compare with step", (versus) => go({ versus }), "none");
    this._title = h("h2", {}, "Samples");
    this._lines = h("ol", { class: "samplelines", "aria-label": "Samples of this step" });
    this._body = h("div", { class: "sampleviews" });
    this.element = h("section", { class: beside ? "samples beside" : "samples", "aria-label": "Samples" },
      h("div", { class: "row head" }, this._title,
        beside && button("Close", () => go({ step: null, versus: null, sample: "" }), { kind: "quiet" })),
      h("div", { class: "row" }, button("Step before", () => this._walk(-1), { kind: "quiet" }), this._step.element,
        button("Step after", () => this._walk(1), { kind: "quiet" }), this._other.element),
      h("div", { class: "samplegrid" }, this._lines, this._body));
    this._grown = () => this._state?.step === null && this._again();
    store.addEventListener("samples", this._grown);
  }

  show(state) {
    const before = this._state;
    this._state = state;
    this._step.set(state.step);
    this._other.set(state.versus);
    if (!before || !this._found || before.step !== state.step) this._load();
    else if (before.versus !== state.versus) this._loadVersus();
    else this._draw();
  }

  close() {
    this._over.abort();
    clearTimeout(this._timer);
    this._store.removeEventListener("samples", this._grown);
  }

  async _load() {
    const { step } = this._state;
    try {
      const found = await samplesOf(this._store.ref, step, this._over.signal);
      if (step !== this._state.step) return;
      this._found = found;
    } catch (error) {
      if (!this._over.signal.aborted) fill(this._body, failure(error, () => this._load()));
      return;
    }
    await this._loadVersus();
  }

  async _loadVersus() {
    const { versus } = this._state;
    this._versus = null;
    if (versus !== null) {
      try {
        const found = await samplesOf(this._store.ref, versus, this._over.signal);
        if (versus !== this._state.versus) return;
        this._versus = found;
      } catch (error) {
        if (this._over.signal.aborted) return;
        say(error.message);
      }
    }
    this._draw();
  }

  // While the newest step is shown, new samples replace the old ones, unless the user is reading one.
  _again() {
    if (this._state.sample) return;
    this._timer ??= setTimeout(() => {
      this._timer = undefined;
      if (!this._over.signal.aborted && this._state.step === null && !this._state.sample) this._load();
    }, AGAIN_MS);
  }

  _draw() {
    const { step, samples } = this._found;
    this._title.textContent = step === null ? "Samples" : `Samples of step ${step}`;
    if (!samples.length) {
      fill(this._lines);
      fill(this._body, this._nothing());
      return;
    }
    const place = Math.max(0, samples.findIndex(({ entry }) => entry === this._state.sample));
    const sample = samples[place];
    const text = JSON.stringify([this._found.step, samples.map(({ entry }) => entry), place, this._state.versus,
      this._versus?.samples.map(({ entry }) => entry)]);
    if (text === this._drawn && this._lines.firstChild) return;
    this._drawn = text;
    const focused = this._lines.contains(document.activeElement);
    fill(this._lines, samples.map((one, index) => sampleLine(one, index === place, () => this._open(one))));
    if (focused) this._lines.querySelectorAll("button")[place].focus();
    fill(this._body, this._moves(samples, place), h("div", { class: "pair" },
      sampleCard(sample, `Sample ${place + 1} of ${samples.length}, step ${step}`), this._second(sample, place)));
  }

  _second(sample, place) {
    if (this._state.versus === null) return null;
    const other = this._versus ? counterpart(sample, place, this._versus.samples) : null;
    if (!other) return notice(`No sample of step ${this._state.versus} was kept.`);
    const same = other.prompt === sample.prompt ? "the same prompt" : "another prompt";
    return sampleCard(other, `Step ${this._state.versus}, ${same}`);
  }

  _moves(samples, place) {
    return h("div", { class: "row" },
      button("Previous sample", () => this._open(samples[place - 1]), { kind: "quiet", disabled: place === 0 }),
      button("Next sample", () => this._open(samples[place + 1]), { kind: "quiet", disabled: place === samples.length - 1 }));
  }

  _open(sample) {
    this._go({ sample: sample.entry, step: sample.step });
    say(`Sample with reward ${sample.reward ?? "unknown"}`);
  }

  _nothing() {
    const { step, steps } = this._found;
    if (step === null) return notice("No samples yet.", "They appear after the first step of a job that generates samples.");
    const other = nearest(step, steps);
    return notice(`No sample of step ${step} was kept.`, "All samples of the newest steps are kept, and some of older steps.",
      other !== null && button(`Show step ${other}`, () => this._go({ step: other, sample: "" })));
  }

  _walk(by) {
    const steps = this._store.series.rows().map((row) => row.step);
    const here = this._state.step ?? this._found?.step ?? 0;
    const next = by > 0 ? steps.find((step) => step > here) : steps.findLast((step) => step < here);
    if (next !== undefined) this._go({ step: next, sample: "" });
  }

  _number(text, change, nothing) {
    const input = h("input", { type: "number", min: 0, step: 1, class: "short", placeholder: nothing,
      on: { change: (event) => change(event.target.value === "" ? null : Number(event.target.value)) } });
    return { element: field(text, input), set: (value) => { if (document.activeElement !== input) input.value = value ?? ""; } };
  }
}
