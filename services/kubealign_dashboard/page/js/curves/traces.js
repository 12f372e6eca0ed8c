// Builds Plotly traces from a job's rows. Pure.

import { interval } from "./intervals.js";
import { smooth, stretches, thin, within } from "./smoothing.js";

const MOST_POINTS = 700;
const MOST_BARS = 120;
const FEW_POINTS = 40;

/** The points of one metric by step: [{x, y, step, interval}]; y is null for NaN and infinity. */
export function points(name, rows, xs) {
  const held = [];
  rows.forEach((row, index) => {
    if (name in row.values) {
      held.push({ x: xs[index], y: row.values[name], step: row.step, interval: interval(name, row.values) });
    }
  });
  return held;
}

/**
 * The lines of a panel: for each metric the smoothed curve over the faint raw curve. `look`: {range,
 * smoothing, log, colours, dash}. Only the visible range is drawn, with a bounded number of points.
 */
export function lines(panel, rows, xs, look) {
  return panel.names.flatMap((name, index) => {
    const all = points(name, rows, xs);
    const colour = look.colours[index % look.colours.length];
    const smoothing = panel.raw ? 0 : look.smoothing;
    const smoothed = smooth(all.map(({ y }) => y), smoothing);
    const [from, to] = within(all.map(({ x }) => x), look.range);
    const part = all.slice(from, to);
    const main = { ...trace(part, smoothed.slice(from, to), colour, look), ...errorBars(part, colour, look) };
    if (smoothing === 0 || look.dash) return [main];
    return [{ ...trace(part, part.map(({ y }) => y), colour, look), opacity: 0.28, mode: "lines", hoverinfo: "skip" },
      main];
  });
}

function trace(part, ys, colour, look) {
  const shown = ys.map((y) => (look.log && !(y > 0) ? null : y));
  const kept = thin(shown, MOST_POINTS);
  return {
    type: "scatter",
    mode: kept.length <= FEW_POINTS ? "lines+markers" : "lines",
    x: kept.map((index) => part[index].x),
    y: kept.map((index) => shown[index]),
    customdata: kept.map((index) => part[index].step),
    line: { color: colour, width: 1.8, dash: look.dash ? "dash" : "solid" },
    marker: { color: colour, size: 4 },
    hoverinfo: "none",
  };
}

// Confidence intervals as bars at the points; none in a panel whose metrics have none, or for the overlaid run.
function errorBars(part, colour, look) {
  if (look.dash || look.log || !part.some((point) => point.interval)) return {};
  const kept = thin(part.map(({ y }) => y), MOST_POINTS).map((index) => part[index]);
  return { error_y: {
    type: "data", symmetric: false, color: colour, thickness: 1, width: kept.length <= FEW_POINTS ? 3 : 0,
    array: kept.map(({ y, interval: bounds }) => (bounds ? Math.max(0, bounds[1] - y) : 0)),
    arrayminus: kept.map(({ y, interval: bounds }) => (bounds ? Math.max(0, y - bounds[0]) : 0)),
  } };
}

/** Stacked bars of time by phase; many steps are averaged over neighbours. */
export function bars(panel, rows, xs, look) {
  const [from, to] = within(xs, look.range);
  const groups = stretches(to - from, MOST_BARS).map((part) => ({ from: part.from + from, to: part.to + from }));
  const middles = groups.map((part) => (xs[part.from] + xs[part.to - 1]) / 2);
  const width = groups.length > 1 ? (xs[to - 1] - xs[from]) / (groups.length - 1 || 1) : 1;
  return panel.names.map((name, index) => ({
    type: "bar",
    x: middles,
    y: groups.map((part) => mean(rows.slice(part.from, part.to).map((row) => row.values[name]))),
    customdata: groups.map((part) => rows[part.to - 1].step),
    width: Math.max(width * 0.86, Number.EPSILON),
    marker: { color: look.colours[index % look.colours.length], line: { width: 0 } },
    hoverinfo: "none",
  }));
}

function mean(values) {
  const held = values.filter(Number.isFinite);
  return held.length ? held.reduce((a, b) => a + b, 0) / held.length : 0;
}

/** The last point of each metric at or before x (default: the newest): [{name, value, step}]. */
export function readings(panel, rows, xs, x = Infinity) {
  return panel.names.map((name) => {
    for (let index = rows.length - 1; index >= 0; index -= 1) {
      if (xs[index] <= x && name in rows[index].values) {
        return { name, value: rows[index].values[name], step: rows[index].step };
      }
    }
    return { name, value: null, step: null };
  });
}
