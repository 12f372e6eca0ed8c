// Validation metrics of two steps side by side. Pure.

import { groupOf, interval, isBound } from "../curves/intervals.js";

/**
 * Groups of rows: [{group, rows: [{name, left, right, difference, verdict}]}]; `left` and `right`: {value, interval}.
 * `difference`: right minus left, null unless both are known. `verdict`: "apart" when both intervals are known and have
 * no value in common, "overlap" when they have, else an empty text.
 */
export function metricGroups(left, right) {
  const names = [...new Set([...Object.keys(left), ...Object.keys(right)])]
    .filter((name) => name.startsWith("val/") && !isBound(name)).sort();
  const groups = new Map();
  for (const name of names) groups.set(groupOf(name), [...(groups.get(groupOf(name)) ?? []), row(name, left, right)]);
  return [...groups].sort(([a], [b]) => (a < b ? -1 : Number(a > b))).map(([group, rows]) => ({ group, rows }));
}

function row(name, left, right) {
  const sides = [left, right].map((values) => ({ value: values[name] ?? null, interval: interval(name, values) }));
  const known = sides.every(({ value }) => Number.isFinite(value));
  return { name, left: sides[0], right: sides[1], difference: known ? sides[1].value - sides[0].value : null,
    verdict: verdict(sides[0].interval, sides[1].interval) };
}

function verdict(left, right) {
  if (!left || !right) return "";
  return left[1] < right[0] || right[1] < left[0] ? "apart" : "overlap";
}

/** The steps that have validation metrics. */
export function validatedSteps(rows) {
  return rows.filter(({ values }) => Object.keys(values).some((name) => name.startsWith("val/"))).map(({ step }) => step);
}

/**
 * The steps to compare, where the address names none: of one job its first and its last, of two jobs the last of each.
 * Null without any.
 */
export function stepsToCompare(left, right, isSameJob) {
  return [(isSameJob ? left[0] : left.at(-1)) ?? null, right.at(-1) ?? null];
}
