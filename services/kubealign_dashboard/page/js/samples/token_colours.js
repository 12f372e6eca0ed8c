// Maps a token's value to a tone and a strength; the style sheet defines the colours. Pure.

/** Values by which a response can be coloured. `two`: the sign matters; else only the magnitude does. */
export const CHOICES = [
  { name: "logprob_gap", label: "Log-probability gap", two: false, unit: "nats",
    means: "absolute difference of the engine's and the trainer's log-probability: strong is a mismatch" },
  { name: "advantages", label: "Advantage", two: true, unit: "",
    means: "what the update makes likelier (above 0) and less likely (below 0)" },
  { name: "kl", label: "KL to the reference", two: true, unit: "nats",
    means: "log-probability less the reference's: where the policy has moved" },
  { name: "logprobs", label: "Log-probability (engine)", two: false, unit: "nats",
    means: "strong: the policy itself found the token unlikely" },
  { name: "trainer_logprobs", label: "Log-probability (trainer)", two: false, unit: "nats",
    means: "strong: the trained policy found the token unlikely" },
  { name: "values", label: "Value", two: true, unit: "", means: "what the critic expects from here on" },
];

/** The choices for which this sample has values. */
export function choicesOf(sample) {
  const held = sample.tokenValues ?? {};
  return CHOICES.filter(({ name }) => (held[name] ?? []).some((value) => Number.isFinite(value)));
}

/**
 * The colour scale of some values: `of(value)` is {tone: "low" | "high", strength: 0..1}, or null without a value.
 * `end` is the 98th percentile of the magnitudes, so that one outlier does not pale all others, in the choice's
 * unit.
 */
export function scale(values, two) {
  const sizes = values.filter(Number.isFinite).map(Math.abs).sort((a, b) => a - b);
  const end = sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.98))] : 0;
  const of = (value) => {
    if (!Number.isFinite(value)) return null;
    const strength = end > 0 ? Math.min(1, Math.abs(value) / end) : 0;
    return { tone: two && value < 0 ? "low" : "high", strength: Math.round(strength * 20) / 20 };
  };
  return { end, of };
}

/** The token for display: invisible characters are replaced by symbols; newlines still break the line. */
export function visible(text) {
  if (text === "") return "∅";
  return text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}
