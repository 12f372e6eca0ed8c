// Progress and remaining time of a job. Pure.

const RECENT = 20;

/** {step, most, share, left}: `most`, `share` 0..1 and `left` in seconds are null when unknown. */
export function progress(resource, rows) {
  const status = resource?.status ?? {};
  const step = Math.max(status.step ?? 0, rows.length ? rows[rows.length - 1].step : 0);
  const most = status.maxSteps ?? stepsOfSpec(resource?.spec);
  const share = most ? Math.min(1, step / most) : null;
  return { step, most, share, left: secondsLeft(status.phase, step, most, rows) };
}

/** The spec's number of steps; null where the number of rows may give a smaller one. */
function stepsOfSpec(spec) {
  const algorithm = Object.values(spec?.algorithm ?? {})[0];
  return algorithm?.maxEpochs ? null : spec?.maxSteps ?? null;
}

function secondsLeft(phase, step, most, rows) {
  if (phase !== "Running" || !most || step >= most) return null;
  const seconds = rows.slice(-RECENT).map((row) => row.values["seconds/step"]).filter(Number.isFinite);
  if (!seconds.length) return null;
  return ((most - step) * seconds.reduce((a, b) => a + b, 0)) / seconds.length;
}

/** The name of the algorithm: ppo, sft, ... */
export function algorithmOf(resource) {
  return Object.keys(resource?.spec?.algorithm ?? {})[0] ?? "";
}

/** The actions that the job's phase allows. */
export function possible(resource) {
  const phase = resource?.status?.phase ?? "Pending";
  const over = phase === "Succeeded" || phase === "Failed";
  const suspended = resource?.spec?.suspend === true || phase === "Suspended" || phase === "Suspending";
  return {
    suspend: !over && !suspended,
    resume: !over && suspended && phase !== "Suspending",
    scale: !over && !suspended && resource?.spec?.rollout !== undefined,
  };
}
