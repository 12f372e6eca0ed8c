// Confidence intervals of validation metrics, which are metrics of their own. Pure.

const BOUND = /\/ci_(low|high)(\/|$)/;

/** True for the bound of an interval, such as val/exact/ci_low. */
export function isBound(name) {
  return BOUND.test(name);
}

/**
 * The interval [low, high] of a metric among these values, or null. The bound's name follows the score's, and a value of
 * `groupBy` comes last: val/exact/ci_low/easy belongs to val/exact/easy.
 */
export function interval(name, values) {
  const parts = name.split("/");
  for (let end = parts.length; end > 1; end -= 1) {
    const [low, high] = ["ci_low", "ci_high"].map((bound) => values[parts.toSpliced(end, 0, bound).join("/")]);
    if (Number.isFinite(low) && Number.isFinite(high)) return [low, high];
  }
  return null;
}

/** The first level of a validation metric with several levels: an evaluation set, or a score; else an empty text. */
export function groupOf(name) {
  const parts = name.split("/");
  return parts[0] === "val" && parts.length > 2 && parts[1] !== "reward" ? parts[1] : "";
}
