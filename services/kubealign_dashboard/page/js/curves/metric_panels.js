// Panels of metrics and their order. Pure. docs/metrics.md describes each metric.

import { groupOf, isBound } from "./intervals.js";

/** Panels in groups. `match`: metric names or patterns; `raw`: few points, not smoothed. */
const PANELS = [
  { group: "Learning", id: "reward", title: "Reward by source", match: ["reward/mean", /^reward\/[^/]+\/mean$/] },
  { group: "Learning", id: "mixture-reward", title: "Reward by data source",
    match: [/^reward\/source\/[^/]+\/mean$/] },
  { group: "Learning", id: "kl", title: "KL to the reference", unit: "nats per token", match: ["kl/reference"] },
  { group: "Learning", id: "objective", title: "Reward and KL penalty", unit: "reward per response",
    match: [/^objective\//] },
  { group: "Learning", id: "entropy", title: "Entropy", unit: "nats", match: ["policy/entropy"] },
  { group: "Learning", id: "length", title: "Response and prompt length", unit: "tokens",
    match: ["response/length", "response/length_max", "prompt/length", "prompt/length_max"] },
  { group: "Learning", id: "truncated", title: "Truncated responses", unit: "share",
    match: ["response/truncated_share"] },
  { group: "Learning", id: "validation", title: "Validation", match: [/^val\/[^/]+$/, /^val\/reward\/[^/]+$/],
    without: ["val/response_length"], raw: true },
  { group: "Learning", id: "accuracy", title: "Reward model accuracy", unit: "share", match: ["rm/accuracy"] },
  { group: "Learning", id: "margin", title: "Reward model scores",
    match: ["rm/margin", "rm/chosen_mean", "rm/rejected_mean"] },
  { group: "Update", id: "loss", title: "Loss",
    match: ["trainer/loss", "policy/loss", "sft/loss", "rm/loss", "critic/loss"] },
  { group: "Update", id: "gradient", title: "Gradient norm",
    match: ["trainer/gradient_norm", "critic/gradient_norm"] },
  { group: "Update", id: "clip", title: "Clipped share", match: ["policy/clip_fraction", "critic/clip_fraction"] },
  { group: "Update", id: "value", title: "Value and return", match: ["value/mean", "return/mean"] },
  { group: "Update", id: "variance", title: "Explained variance", match: ["critic/explained_variance"] },
  { group: "Update", id: "rate", title: "Learning rate",
    match: ["trainer/learning_rate", "critic/learning_rate"], raw: true },
  { group: "Time", id: "phases", title: "Time by phase", unit: "seconds per step", kind: "stacked",
    match: [...["generate", "score", "values", "logprobs", "train", "refit"].map((name) => `seconds/${name}`),
      /^seconds\/(?!step$|validation$|wait_groups$|groups_waited$)[^/]+$/] },
  { group: "Time", id: "models", title: "Time by model", unit: "seconds per step",
    match: [/^seconds\/(train|score)\//, "seconds/validation"] },
  { group: "Time", id: "throughput", title: "Throughput", unit: "tokens per second", match: [/^tokens_per_second/] },
  { group: "Time", id: "refit-seconds", title: "Refit: seconds", unit: "seconds",
    match: ["seconds/refit", /^refit\/.*seconds$/] },
  { group: "Time", id: "refit-bytes", title: "Refit: bytes", unit: "bytes", match: ["refit/bytes"], raw: true },
  { group: "System", id: "queue", title: "Queues", match: [/^(queue|bus|groups)\//] },
  { group: "System", id: "staleness", title: "Staleness", unit: "weight versions",
    match: ["rollout/staleness", "rollout/staleness_max"] },
  { group: "System", id: "mismatch", title: "Engine against trainer", unit: "nats",
    match: ["rollout/logprob_gap_mean", "rollout/logprob_gap_max"] },
  { group: "System", id: "workers", title: "Refit: workers", match: [/^refit\/.*workers$/], raw: true },
  { group: "System", id: "canary", title: "Refit: canary gap", unit: "nats", match: ["refit/canary_gap"] },
  { group: "System", id: "refit-retries", title: "Refit: retries", match: ["refit/retries"], raw: true },
  { group: "System", id: "data", title: "Lost prompts and groups",
    match: ["data/dropped_prompts", "data/given_up_prompts", "data/discarded_groups"], raw: true },
];

const NOT_DRAWN = new Set(["time", "seconds/step", "weights/version"]);
const MOST_LINES = 8;

/** The panels of these metrics, each with its `names`; unmatched metrics come last, one panel per prefix. */
export function panelsFor(names) {
  const taken = new Set([...NOT_DRAWN, ...[...names].filter(isBound)]);
  const panels = [];
  for (const panel of PANELS) {
    const matched = panel.match.flatMap((wanted) => matching(wanted, names, taken)).filter(
      (name) => !panel.without?.includes(name));
    const kept = [...new Set(matched)].slice(0, MOST_LINES);
    kept.forEach((name) => taken.add(name));
    if (kept.length) panels.push({ kind: "lines", unit: "", ...panel, names: kept });
    if (panel.id === "validation") panels.push(...validationPanels([...names].filter((name) => !taken.has(name)), taken));
  }
  return panels.concat(others([...names].filter((name) => !taken.has(name)).sort()));
}

// Validation metrics with several levels: a panel for each evaluation set, or for each score with several figures.
function validationPanels(names, taken) {
  const groups = new Map();
  for (const name of names.filter(groupOf).sort()) groups.set(groupOf(name), [...(groups.get(groupOf(name)) ?? []), name]);
  return [...groups].map(([group, held]) => {
    held.forEach((name) => taken.add(name));
    return { group: "Learning", id: `validation-${group}`, title: `Validation: ${group}`, unit: "", kind: "lines", raw: true,
      names: held.slice(0, MOST_LINES) };
  });
}

function matching(wanted, names, taken) {
  if (typeof wanted === "string") return names.has(wanted) ? [wanted] : [];
  return [...names].filter((name) => wanted.test(name) && !taken.has(name)).sort();
}

function others(names) {
  const byPrefix = new Map();
  for (const name of names) byPrefix.set(prefix(name), [...(byPrefix.get(prefix(name)) ?? []), name]);
  return [...byPrefix].map(([title, held]) => ({
    group: "Other metrics", id: `other-${title}`, title, unit: "", kind: "lines", names: held.slice(0, MOST_LINES),
  }));
}

function prefix(name) {
  return name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : name;
}

/** The short name of a metric within its panel, without the common prefix. */
export function label(name, panel) {
  if (panel.id === "reward") return name === "reward/mean" ? "reward of the job" : name.split("/")[1];
  if (panel.id === "mixture-reward") return name.split("/")[2];
  if (panel.id.startsWith("validation-")) return name.split("/").slice(2).join(" ").replaceAll("_", " ");
  if (panel.kind === "stacked") return name.replace("seconds/", "");
  return name.replaceAll("_", " ").replace(/^(val|refit|data|response|rollout|seconds|objective)\//, "").replace("/", " ");
}

/** The panel that shows this metric, or null. */
export function panelOf(name, panels) {
  return panels.find((panel) => panel.names.includes(name)) ?? null;
}
