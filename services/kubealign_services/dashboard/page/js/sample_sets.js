// The samples that a page holds: in order, by step, and the same prompt at another step. Pure.

/** Best reward first; those without one last, else as they came. */
export function ordered(samples) {
  const rank = (sample) => (Number.isFinite(sample.reward) ? sample.reward : -Infinity);
  return [...samples].sort((a, b) => rank(b) - rank(a) || compare(a.entry, b.entry));
}

function compare(a, b) {
  return a < b ? -1 : Number(a > b);
}

/** Of these the one of the same prompt, else of the same place in the order, else null. */
export function counterpart(sample, place, others) {
  return others.find((other) => other.prompt === sample.prompt) ?? others[Math.min(place, others.length - 1)] ?? null;
}

/** The step with figures that lies nearest; of two the later one. Null without any. */
export function nearest(step, steps) {
  let best = null;
  for (const candidate of steps) {
    if (best === null || Math.abs(candidate - step) <= Math.abs(best - step)) best = candidate;
  }
  return best;
}
