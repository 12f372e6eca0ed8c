// Smoothing and downsampling of curves. Pure.

/**
 * Exponential moving average with weight 0 (the raw curve) to below 1. It is divided by the sum of the weights, so
 * the first points are not biased towards zero. A null or NaN leaves a gap and is ignored.
 */
export function smooth(values, weight) {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/**
 * At most about `most` indices of a curve: both ends, and the lowest and highest point of each stretch, so that no
 * spike is lost. Each gap keeps one point.
 */
export function thin(values, most) {
  if (values.length <= most) return values.map((_, index) => index);
  const stretch = Math.ceil(values.length / Math.max(1, Math.floor(most / 2)));
  const chosen = new Set([0, values.length - 1]);
  for (let begin = 0; begin < values.length; begin += stretch) {
    let low = begin;
    let high = begin;
    for (let index = begin; index < Math.min(begin + stretch, values.length); index += 1) {
      if (!Number.isFinite(values[index])) continue;
      if (!Number.isFinite(values[low]) || values[index] < values[low]) low = index;
      if (!Number.isFinite(values[high]) || values[index] > values[high]) high = index;
    }
    chosen.add(low).add(high);
  }
  return [...chosen].sort((a, b) => a - b);
}

/** Divide rows into at most `most` stretches of equal length: [{from, to}], `to` exclusive. */
export function stretches(length, most) {
  const each = Math.max(1, Math.ceil(length / most));
  const parts = [];
  for (let from = 0; from < length; from += each) parts.push({ from, to: Math.min(from + each, length) });
  return parts;
}

/** The index range [first, past the last) of the positions in the range, plus one on either side. */
export function within(positions, range) {
  if (!range) return [0, positions.length];
  let from = positions.findIndex((x) => x >= range[0]);
  if (from === -1) from = positions.length;
  let to = from;
  while (to < positions.length && positions[to] <= range[1]) to += 1;
  return [Math.max(0, from - 1), Math.min(positions.length, to + 1)];
}
