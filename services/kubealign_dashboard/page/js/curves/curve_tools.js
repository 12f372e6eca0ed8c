// Controls for all curves at once.

import { fill, h } from "../core/dom.js";
import { button, field } from "../core/components.js";
import { jobSearch } from "../core/job_search.js";

const MOST_SMOOTHING = 0.98;

/**
 * {element, show(state, zoom)}. `told`: {axis(name), look({smoothing, log}), zoom(range or null), overlay(text)}.
 */
export function curveTools(ref, told) {
  const look = { smoothing: 0.6, log: false };
  const axes = h("div", { class: "segments", role: "group", "aria-label": "x axis" });
  const shown = h("output", {}, look.smoothing.toFixed(2));
  const smoothing = h("input", { type: "range", min: 0, max: MOST_SMOOTHING, step: 0.02, value: look.smoothing,
    on: { input: (event) => {
      look.smoothing = Number(event.target.value);
      shown.textContent = look.smoothing.toFixed(2);
      told.look(look);
    } } });
  const log = h("button", { type: "button", class: "button toggle", "aria-pressed": "false", on: { click: () => {
    look.log = !look.log;
    log.setAttribute("aria-pressed", String(look.log));
    told.look(look);
  } } }, "log y");
  const from = bound("From");
  const to = bound("to");
  const reset = button("Whole run", () => told.zoom(null), { kind: "quiet" });
  const overlay = jobSearch("Compare with", { namespace: ref.namespace, choose: told.overlay,
    placeholder: "name of another job", leaveOut: `${ref.namespace}/${ref.name}` });

  function bound(text) {
    const input = h("input", { type: "number", step: "any", class: "short", "aria-label": `${text} (x axis)`,
      on: { change: narrow } });
    return { input, element: h("span", { class: "bound" }, h("span", { "aria-hidden": "true" }, text), input) };
  }

  function narrow() {
    const [low, high] = [from.input.valueAsNumber, to.input.valueAsNumber];
    if (Number.isFinite(low) && Number.isFinite(high) && low < high) told.zoom([low, high]);
  }

  function show(state, range, extent) {
    fill(axes, ["step", "time"].map((name) => h("button", { type: "button", class: "segment",
      "aria-pressed": String(state.axis === name), on: { click: () => told.axis(name) } }, name)));
    const digits = state.axis === "step" ? 0 : 2;
    [from, to].forEach(({ input }, end) => {
      input.placeholder = extent ? rounded(extent[end], digits) : "";
      if (document.activeElement !== input) input.value = range ? rounded(range[end], digits) : "";
    });
    reset.disabled = !range;
    overlay.show(state.overlay);
  }

  const element = h("div", { class: "tools", role: "group", "aria-label": "All curves" },
    axes, field("Smoothing", h("span", { class: "slider" }, smoothing, shown)), log,
    h("span", { class: "bounds" }, from.element, to.element, reset), overlay.element);
  return { element, show, look };
}

function rounded(value, digits) {
  return String(Math.max(0, Number(value.toFixed(digits))));
}
