// The filters of the job list.

import { ALGORITHMS } from "../algorithms.js"; // made by the server
import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { icon } from "../core/icons.js";
import { field, select } from "../core/components.js";

const PHASES = ["Pending", "Starting", "Running", "Suspending", "Suspended", "Succeeded", "Failed"];
const TYPING_MS = 250;

/** {element, show(state), learn(namespaces), focus()}; `change` receives the changed part of the list's state. */
export function filters(app, change) {
  const search = text("search", "Part of a name", (value) => change({ search: value }));
  search.setAttribute("aria-keyshortcuts", "/");
  const label = text("text", "team=a,tier!=dev", (value) => change({ label: value }));
  const namespace = h("span");
  const algorithm = h("span");
  const phases = h("div", { class: "chips", role: "group", "aria-label": "Phase" });
  let names = [];
  let state = null;

  function show(next) {
    state = next;
    for (const [input, value] of [[search, state.search], [label, state.label]]) {
      if (document.activeElement !== input) input.value = value;
    }
    const known = names.includes(state.namespace) || !state.namespace ? names : [state.namespace, ...names];
    keep(namespace, select([["", "all"], ...known.map((name) => [name, name])], state.namespace,
      (value) => change({ namespace: value })));
    const chosen = state.algorithms[0] ?? "";
    const offered = ALGORITHMS.includes(chosen) || !chosen ? ALGORITHMS : [...ALGORITHMS, chosen];
    keep(algorithm, select([["", "any"], ...offered.map((name) => [name, name])], chosen, (value) => change({ algorithms: value ? [value] : [] })));
    const focused = phases.contains(document.activeElement) ? document.activeElement.dataset.phase : null;
    fill(phases, PHASES.map((phase) => chip(phase)));
    phases.querySelector(`[data-phase="${focused}"]`)?.focus();
  }

  function chip(phase) {
    const pressed = state.phases.includes(phase);
    const others = state.phases.filter((held) => held !== phase);
    return h("button", { type: "button", class: "chip phase", data: { phase }, "aria-pressed": String(pressed),
      on: { click: () => change({ phases: pressed ? others : [...others, phase] }) } }, icon(phase), phase);
  }

  // Namespaces appear while the list is open: those of listed jobs are offered as well.
  function learn(more) {
    const known = [...new Set([...names, ...more])].sort();
    if (known.length === names.length) return;
    names = known;
    if (state) show(state);
  }

  get("namespaces").then(({ items }) => learn(items), (error) => app.quietly(error));

  const element = h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
    field("Search", search), field("Namespace", namespace), field("Algorithm", algorithm), field("Labels", label),
    phases);
  return { element, show, learn, focus: () => search.focus() };
}

// A select box is only replaced when it has changed: the user may have it open or focused.
function keep(place, box) {
  const held = place.firstChild;
  const same = held && held.value === box.value && held.options.length === box.options.length;
  if (!same) fill(place, box);
}

function text(type, placeholder, change) {
  let timer = null;
  let typed = "";
  const tell = () => {
    if (timer === null) return;
    clearTimeout(timer);
    timer = null;
    change(typed);
  };
  return h("input", { type, placeholder, autocomplete: "off", spellcheck: "false", on: {
    input: (event) => {
      typed = event.target.value.trim();
      clearTimeout(timer);
      timer = setTimeout(tell, TYPING_MS);
    },
    // Leaving the field applies the value without delay.
    change: tell,
  } });
}
