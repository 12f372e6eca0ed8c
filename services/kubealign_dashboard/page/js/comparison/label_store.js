// The labels that people gave to the responses of a comparison.

import { get, jobPath, send } from "../core/api.js";

const OPPOSITE = { left: "right", right: "left" };

/** Labels of both jobs by subject. A label is stored with the job of its left side. */
export class LabelStore {
  constructor(labels = []) {
    this._labels = new Map();
    for (const label of labels) this._add(label);
  }

  /** Fetch the labels of the jobs [{namespace, name}]. Throws ApiError. */
  static async fetch(jobs, signal) {
    const pages = await Promise.all(jobs.map((job) => get(jobPath(job, "labels"), [], signal)));
    return new LabelStore(pages.flatMap(({ items }) => items));
  }

  /** The label of a subject as seen with this left side: {verdict, reason, author, time}, or null. */
  seen(subject, left) {
    const label = this._labels.get(subject);
    if (!label?.verdict) return null;
    const swapped = label.right !== null && ["namespace", "name", "step"].some((name) => label.left[name] !== left[name]);
    return swapped ? { ...label, verdict: OPPOSITE[label.verdict] ?? label.verdict } : label;
  }

  /** Store the label of a pair, or of one response (`right` null). A verdict null withdraws it. Throws ApiError. */
  async save(promptId, left, right, { verdict, reason }) {
    const body = { verdict, reason, promptId, step: left.step, other: right };
    this._add(await send("POST", jobPath(left, "labels"), body));
  }

  // The newest label of a subject counts.
  _add(label) {
    const known = this._labels.get(label.subject);
    if (!known || label.time >= known.time) this._labels.set(label.subject, label);
  }
}
