// One panel: curves or bars, a legend with current values, a text summary and a table.

import { fill, h, newId } from "../core/dom.js";
import { bytes, duration, number } from "../core/format.js";
import { label } from "./metric_panels.js";
import { table } from "../core/components.js";
import { plotly } from "./plotly_loader.js";
import { summary } from "./curve_summary.js";
import { interval } from "./intervals.js";
import { colour } from "../core/themes.js";
import { bars, lines, points, readings } from "./traces.js";

const HEIGHT = 176;
const MARGIN = { l: 52, r: 10, t: 8, b: 24 };
const TABLE_ROWS = 60;
const COLOURS = 8;
const coarse = matchMedia("(pointer: coarse)");

/**
 * `told`: callbacks {zoom(range or null), hover(x or null), pick(step), took(milliseconds of drawing)}. `update` takes
 * the complete picture and draws it when the panel is on the screen.
 */
export class Chart {
  constructor(panel, told) {
    this.panel = panel;
    this._told = told;
    this._seen = false;
    this._stale = false;
    const heading = newId("chart");
    const words = newId("words");
    this._legend = h("ul", { class: "legend" });
    this._words = h("p", { class: "unseen", id: words });
    this._plot = h("div", { class: "plot" });
    this._cursor = h("div", { class: "cursor", hidden: true });
    this._details = h("details", { class: "astable", on: { toggle: () => this._drawTable() } },
      h("summary", {}, "Table"));
    this.element = h("figure", { class: "chart", id: `figure-${panel.id}`, tabindex: "-1", "aria-labelledby": heading },
      h("figcaption", {}, h("h4", { id: heading }, panel.title,
        panel.unit && h("span", { class: "unit" }, ` ${panel.unit}`)), this._legend, this._words),
      h("div", { class: "canvas", role: "img", "aria-labelledby": heading, "aria-describedby": words },
        this._plot, this._cursor),
      this._details);
    this._watch = new IntersectionObserver((entries) => {
      this._seen = entries.some((entry) => entry.isIntersecting);
      if (this._seen && this._stale) this._draw();
    }, { rootMargin: "200px" });
    this._watch.observe(this.element);
    this._size = new ResizeObserver(() => this._resize());
    this._size.observe(this._plot);
  }

  /** `picture`: {rows, xs, overlay: {title, rows, xs} or null, extent, range, smoothing, log, axis}. */
  update(picture) {
    this._picture = picture;
    this._stale = true;
    this._drawLegend(readings(this.panel, picture.rows, picture.xs));
    if (this._seen) this._draw();
  }

  /** Show the values at this position of the x axis; null: the newest values. */
  point(x) {
    const { rows, xs } = this._picture;
    this._drawLegend(readings(this.panel, rows, xs, x ?? Infinity));
    const axis = this._plot._fullLayout?.xaxis;
    this._cursor.hidden = x === null || !axis;
    if (!this._cursor.hidden) this._cursor.style.setProperty("--x", `${axis._offset + axis.l2p(x)}px`);
  }

  close() {
    this._watch.disconnect();
    this._size.disconnect();
    globalThis.Plotly?.purge(this._plot);
  }

  async _draw() {
    this._stale = false;
    this._cursor.hidden = true;
    let library;
    try {
      library = await plotly();
    } catch (error) {
      fill(this._plot, h("p", { class: "quiet" }, error.message));
      return;
    }
    if (!this.element.isConnected) return;
    const begun = performance.now();
    const traces = this._traces();
    await library.react(this._plot, traces, this._layout(traces), {
      displayModeBar: false, responsive: false, doubleClick: "reset", showTips: false,
    });
    this._told.took(performance.now() - begun);
    this._listen();
    this._drawWords();
    if (this._details.open) this._drawTable();
  }

  _listen() {
    if (this._listening) return;
    this._listening = true;
    this._plot.on("plotly_hover", ({ points: [first] }) => this._told.hover(first.x));
    this._plot.on("plotly_unhover", () => this._told.hover(null));
    this._plot.on("plotly_click", ({ points: [first] }) => this._told.pick(first.customdata));
    this._plot.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) this._told.zoom([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
      else if (change["xaxis.range"]) this._told.zoom(change["xaxis.range"]);
      else if (change["xaxis.autorange"]) this._told.zoom(null);
    });
    this._plot.on("plotly_doubleclick", () => this._told.zoom(null));
  }

  _traces() {
    const { rows, xs, overlay, range, smoothing, log } = this._picture;
    const look = { range, smoothing, log, colours: palette() };
    if (this.panel.kind === "stacked") return bars(this.panel, rows, xs, look);
    const own = lines(this.panel, rows, xs, look);
    if (!overlay) return own;
    return own.concat(lines(this.panel, overlay.rows, overlay.xs, { ...look, dash: true }));
  }

  _layout(traces) {
    const { range, extent, log, axis } = this._picture;
    const stacked = this.panel.kind === "stacked";
    const lined = { gridcolor: colour("--line-soft"), linecolor: colour("--line"), zeroline: false };
    const font = { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--quiet") };
    return {
      height: HEIGHT, margin: MARGIN, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font,
      autosize: true, showlegend: false, barmode: "stack", bargap: 0, hovermode: "x", hoverdistance: -1,
      dragmode: coarse.matches ? false : "zoom", uirevision: "kept",
      xaxis: { ...lined, range: range ?? extent, autorange: false, fixedrange: coarse.matches, nticks: 6,
        ticksuffix: axis === "time" ? " h" : "" },
      yaxis: { ...lined, fixedrange: true, type: log && !stacked ? "log" : "linear", nticks: 5,
        exponentformat: this.panel.unit === "bytes" ? "SI" : "e", rangemode: stacked ? "tozero" : "normal",
        ...(stacked ? {} : flat(traces, log)) },
    };
  }

  _resize() {
    if (this._listening && this._plot.offsetParent !== null) globalThis.Plotly.Plots.resize(this._plot);
  }

  _drawLegend(shown) {
    const text = shown.map(({ name, value, step }) => `${name}=${value}@${step}`).join();
    if (text === this._shownLegend) return;
    this._shownLegend = text;
    fill(this._legend, shown.map(({ name, value }, index) => h("li", {},
      h("span", { class: "swatch", "aria-hidden": "true", vars: { "--colour": `var(--series-${index % COLOURS})` } }),
      shown.length > 1 && h("span", { class: "name" }, label(name, this.panel), " "),
      h("strong", {}, written(value, this.panel)))));
  }

  _drawWords() {
    const { rows } = this._picture;
    const sentences = this.panel.names.map((name) => {
      const held = points(name, rows, rows.map(({ step }) => step));
      return withInterval(summary(label(name, this.panel), held.map(({ step }) => step), held.map(({ y }) => y)),
        held.at(-1)?.interval ?? null);
    });
    this._words.textContent = `${sentences.join(". ")}.`;
  }

  _drawTable() {
    this._details.querySelector(".scroll")?.remove();
    if (!this._details.open) return;
    const names = this.panel.names;
    const held = this._picture.rows.filter((row) => names.some((name) => name in row.values));
    const columns = [{ title: "Step", class: "figure" },
      ...names.map((name) => ({ title: label(name, this.panel), class: "figure" }))];
    this._details.append(table(`${this.panel.title}: the last ${Math.min(TABLE_ROWS, held.length)} steps`, columns,
      held.slice(-TABLE_ROWS).reverse().map((row) => [row.step,
        ...names.map((name) => withInterval(written(row.values[name], this.panel), interval(name, row.values)))])));
  }
}

function withInterval(text, bounds) {
  return bounds === null ? text : `${text} (${number(bounds[0])} to ${number(bounds[1])})`;
}

function written(value, panel) {
  if (panel.unit === "bytes") return bytes(value);
  return panel.unit.startsWith("seconds") ? duration(value) : number(value);
}

// Without this a constant would be drawn as rounding noise over the full height.
function flat(traces, log) {
  const values = traces.flatMap(({ y }) => y).filter((value) => Number.isFinite(value));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (log || !values.length || traces.some((trace) => trace.error_y) || high - low > Math.abs(high) * 1e-6) return { autorange: true };
  const margin = Math.abs(high) * 0.1 || 1;
  return { autorange: false, range: [low - margin, high + margin] };
}

function palette() {
  return Array.from({ length: COLOURS }, (_, index) => colour(`--series-${index}`));
}
