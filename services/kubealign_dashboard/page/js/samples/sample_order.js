// Order of samples, nearest steps, and the counterpart of a sample at another step. Pure.

/** Sort by descending reward; samples without a reward last; stable. */
export function ordered(samples) {
  const rank = (sample) => (Number.isFinite(sample.reward) ? sample.reward : -Infinity);
  return [...samples].sort((a, b) => rank(b) - rank(a) || compare(a.entry, b.entry));
}

function compare(a, b) {
  return a < b ? -1 : Number(a > b);
}

/** The sample with the same prompt, else with the same position, else null. */
export function counterpart(sample, place, others) {
  return others.find((other) => other.prompt === sample.prompt) ?? others[Math.min(place, others.length - 1)] ?? null;
}

/** The nearest step; of two the later one. Null without any. */
export function nearest(step, steps) {
  let best = null;
  for (const candidate of steps) {
    if (best === null || Math.abs(candidate - step) <= Math.abs(best - step)) best = candidate;
  }
  return best;
}
