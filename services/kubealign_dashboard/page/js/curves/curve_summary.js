// Describes a curve in words for screen readers. Pure.

import { number } from "../core/format.js";

/** "now 0.52 at step 90; from 0.1 at step 1; lowest 0.1 (step 1), highest 0.61 (step 80)". */
export function summary(name, steps, values) {
  const points = values.map((value, index) => ({ value, step: steps[index] })).filter(
    ({ value }) => Number.isFinite(value));
  if (!points.length) return `${name}: no values yet`;
  const first = points[0];
  const last = points[points.length - 1];
  if (points.length === 1) return `${name}: ${number(last.value)} at step ${last.step}`;
  const low = points.reduce((a, b) => (b.value < a.value ? b : a));
  const high = points.reduce((a, b) => (b.value > a.value ? b : a));
  return `${name}: now ${number(last.value)} at step ${last.step}; ${number(first.value)} at step ${first.step}; ` +
    `lowest ${number(low.value)} (step ${low.step}), highest ${number(high.value)} (step ${high.step})`;
}
