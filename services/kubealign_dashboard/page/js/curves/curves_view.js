// All metrics of a job as small panels on a shared x axis.

import { Chart } from "./chart.js";
import { curveTools } from "./curve_tools.js";
import { fill, h, say } from "../core/dom.js";
import { panelOf, panelsFor } from "./metric_panels.js";
import { Overlaid } from "./overlaid_runs.js";
import { notice } from "../core/components.js";
import { positions } from "../job/step_series.js";
import { onTheme } from "../core/themes.js";

const BETWEEN_DRAWS_MS = 400;
const LONGEST_BETWEEN_MS = 5000;
const SHARE_OF_DRAWING = 4;
const FOLDED = "Other figures";

export class CurvesView {
  /** `go` changes the page's state. */
  constructor(store, go) {
    this._store = store;
    this._go = go;
    this._charts = new Map();
    this._range = null;
    /** Duration of the last drawing round in milliseconds. */
    this._cost = 0;
    this._tools = curveTools(store.ref, {
      axis: (axis) => {
        this._range = null;
        go({ axis });
      },
      look: () => this._soon(),
      zoom: (range) => this._zoom(range),
      overlay: (overlay) => go({ overlay }),
    });
    this._problem = h("p", { class: "quiet" });
    this._groups = h("div", { class: "groups" });
    this.element = h("section", { class: "curves", "aria-label": "Curves" }, this._tools.element, this._problem, this._groups);
    this._grown = () => this._soon();
    this._known = () => !store.series.rows().length && this._soon();
    store.addEventListener("metrics", this._grown);
    store.addEventListener("resource", this._known);
    this._unthemed = onTheme(() => this._draw());
  }

  show(state) {
    const before = this._state;
    this._state = state;
    if (before?.overlay !== state.overlay) this._overlay(state.overlay);
    this._draw();
  }

  /** Scroll to the panel of this metric; false when no panel shows it. */
  reveal(name) {
    const panel = panelOf(name, [...this._charts.values()].map((chart) => chart.panel));
    if (!panel) return false;
    const { element } = this._charts.get(panel.id);
    element.closest("details")?.setAttribute("open", "");
    element.scrollIntoView({ block: "center" });
    element.focus({ preventScroll: true });
    return true;
  }

  close() {
    this._store.removeEventListener("metrics", this._grown);
    this._store.removeEventListener("resource", this._known);
    clearTimeout(this._timer);
    this._unthemed();
    this._overlaid?.close();
    for (const chart of this._charts.values()) chart.close();
  }

  _overlay(text) {
    this._overlaid?.close();
    this._overlaid = null;
    this._problem.textContent = "";
    if (!text) return;
    this._overlaid = new Overlaid(text, () => this._soon(), (error) => {
      this._problem.textContent = `${text} cannot be laid over: ${error.message}`;
      say(this._problem.textContent);
    });
    this._problem.textContent = `Dashed: ${text}`;
  }

  _zoom(range) {
    this._range = range;
    this._draw();
  }

  // A fast job reports many steps per second, and a slider moves even faster: drawing is throttled so that user input
  // gets most of the time, however slow the machine is.
  _soon() {
    this._timer ??= setTimeout(() => {
      this._timer = undefined;
      this._draw();
    }, Math.min(LONGEST_BETWEEN_MS, Math.max(BETWEEN_DRAWS_MS, SHARE_OF_DRAWING * this._cost)));
  }

  _draw() {
    if (!this._state || !this.element.isConnected) return;
    const rows = this._store.series.rows();
    if (!rows.length) {
      fill(this._groups, this._store.resource === null ? h("p", { class: "quiet", role: "status" }, "Loading the figures…")
        : notice("No step is done yet.", "The curves begin with the first step."));
      return;
    }
    const { axis } = this._state;
    const xs = positions(rows, axis);
    const other = this._overlaid?.series.rows() ?? [];
    const overlay = other.length
      ? { title: this._overlaid.title, rows: other, xs: positions(other, axis) } : null;
    const extent = wide([...ends(xs), ...ends(overlay?.xs ?? [])]);
    const { smoothing, log } = this._tools.look;
    const picture = { rows, xs, overlay, extent, range: this._range, smoothing, log, axis };
    this._tools.show(this._state, this._range, extent);
    this._cost = 0;
    this._arrange(panelsFor(this._store.series.names()));
    for (const chart of this._charts.values()) chart.update(picture);
  }

  _arrange(panels) {
    const text = JSON.stringify(panels.map(({ id, names }) => [id, names]));
    if (text === this._arranged) return;
    this._arranged = text;
    const kept = new Map();
    for (const panel of panels) {
      const held = this._charts.get(panel.id);
      if (held && String(held.panel.names) === String(panel.names)) kept.set(panel.id, held);
      else kept.set(panel.id, new Chart(panel, this._told()));
    }
    for (const [id, chart] of this._charts) if (kept.get(id) !== chart) chart.close();
    this._charts = kept;
    const groups = [...new Set(panels.map(({ group }) => group))];
    const open = this._groups.querySelector("details.group")?.open ?? false;
    fill(this._groups, groups.map((group) => {
      const charts = panels.filter((panel) => panel.group === group).map(({ id }) => kept.get(id).element);
      const grid = h("div", { class: "panels" }, charts);
      if (group === FOLDED) return h("details", { class: "group", open }, h("summary", {}, h("h3", {}, group)), grid);
      return h("section", { class: "group", "aria-label": group }, h("h3", {}, group), grid);
    }));
  }

  _told() {
    return {
      zoom: (range) => this._zoom(range),
      hover: (x) => {
        for (const chart of this._charts.values()) chart.point(x);
      },
      pick: (step) => this._go({ step, sample: "" }),
      took: (milliseconds) => {
        this._cost += milliseconds;
      },
    };
  }
}

function ends(xs) {
  return xs.length ? [xs[0], xs[xs.length - 1]] : [];
}

// A single step still gets an axis of nonzero width.
function wide(xs) {
  const [low, high] = [Math.min(...xs), Math.max(...xs)];
  const margin = (high - low) * 0.01 || 0.5;
  return [low - margin, high + margin];
}
