// Fetches the samples of a step, or of the newest step that has any.

import { get, jobPath } from "../core/api.js";
import { ordered } from "./sample_order.js";

const MOST = 100;

/** {step, samples, steps}: `steps`: other steps with samples, if known. Throws ApiError. */
export async function samplesOf(ref, step, signal) {
  if (step !== null) {
    const { items } = await get(jobPath(ref, "samples"), { step, limit: MOST }, signal);
    if (items.length) return { step, samples: ordered(items), steps: [step] };
  }
  const { items } = await get(jobPath(ref, "samples"), { newest: true, limit: MOST }, signal);
  const steps = [...new Set(items.map((item) => item.step))].sort((a, b) => a - b);
  if (step !== null || !items.length) return { step, samples: [], steps };
  const newest = steps[steps.length - 1];
  return { step: newest, samples: ordered(items.filter((item) => item.step === newest)), steps };
}
