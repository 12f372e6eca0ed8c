// The metrics of a job's steps, merged from entries that may arrive late, twice, or again after a rollback. Pure.

/**
 * The steps of one job. Entries are {entry, step, fence, values}, in any order and any number of times.
 * A driver that continues from step N under a higher fence invalidates all later steps of lower fences: they were
 * rolled back. Within a step the value of the highest fence wins, metric by metric, so that a validation that is
 * reported separately joins its step.
 */
export class StepSeries {
  constructor() {
    this.clear();
  }

  clear() {
    /** step -> fence -> {values, at}: `at` is the entry with which the time is computed. */
    this._held = new Map();
    /** fence -> lowest step that it has reported. */
    this._floors = new Map();
    this._rows = null;
    /** The latest entry that was added. */
    this.last = "0-0";
  }

  /** Add entries; true when there was any. */
  add(items) {
    for (const { entry, step, fence, values } of items) {
      const fences = this._held.get(step) ?? new Map();
      const known = fences.get(fence);
      const newer = known === undefined || compareEntries(entry, known.entry) >= 0;
      const merged = newer ? { ...known?.values, ...values } : { ...values, ...known.values };
      fences.set(fence, { values: merged, entry: newer ? entry : known.entry });
      this._held.set(step, fences);
      this._floors.set(fence, Math.min(step, this._floors.get(fence) ?? step));
      if (compareEntries(entry, this.last) > 0) this.last = entry;
    }
    if (items.length) this._rows = null;
    return items.length > 0;
  }

  /** [{step, fence, entry, values}] sorted by step, each step once. */
  rows() {
    this._rows ??= this._merge();
    return this._rows;
  }

  _merge() {
    const rows = [];
    for (const step of [...this._held.keys()].sort((a, b) => a - b)) {
      const fences = [...this._held.get(step).keys()].sort((a, b) => a - b).filter((f) => !this._void(f, step));
      if (!fences.length) continue;
      const held = this._held.get(step);
      const values = Object.assign({}, ...fences.map((fence) => held.get(fence).values));
      const fence = fences[fences.length - 1];
      rows.push({ step, fence, entry: held.get(fence).entry, values });
    }
    return rows;
  }

  _void(fence, step) {
    for (const [other, floor] of this._floors) {
      if (other > fence && floor < step) return true;
    }
    return false;
  }

  /** The names of all metrics. */
  names() {
    const names = new Set();
    for (const row of this.rows()) for (const name of Object.keys(row.values)) names.add(name);
    return names;
  }
}

/** Compare entries, which are "number-number" as in Redis: negative, 0 or positive. */
export function compareEntries(a, b) {
  const [aMain, aMinor] = a.split("-").map(Number);
  const [bMain, bMinor] = b.split("-").map(Number);
  return aMain - bMain || (aMinor || 0) - (bMinor || 0);
}

/**
 * The position of each row on the x axis. "step": the step. "time": hours since the first row, from the time of the
 * row or of its entry, else from the sum of the steps' seconds.
 */
export function positions(rows, axis) {
  if (axis === "step") return rows.map((row) => row.step);
  const stamps = rows.map(stamp);
  if (stamps.every((time) => time !== null)) return stamps.map((time) => (time - stamps[0]) / 3600);
  let sum = 0;
  return rows.map((row) => {
    sum += row.values["seconds/step"] ?? 0;
    return sum / 3600;
  });
}

// Redis entries start with milliseconds; those of a file are byte offsets, far below any time of this century.
function stamp(row) {
  if (typeof row.values.time === "number") return row.values.time;
  const main = Number(row.entry.split("-")[0]);
  return main > 1e12 ? main / 1000 : null;
}
