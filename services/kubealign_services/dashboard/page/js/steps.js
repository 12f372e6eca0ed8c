// What a job's steps have measured, put together from entries that may come late, twice, or anew after a rollback.
// Pure.

/**
 * The steps of one job. Entries are {entry, step, fence, values}; any order, any number of times.
 * A driver that goes on under a higher fence from step N makes every later step of the lower fences void: they
 * were rolled back. At one step the highest fence's value counts, figure by figure, so that a validation
 * that is reported apart joins the step that it belongs to.
 */
export class StepSeries {
  constructor() {
    this.clear();
  }

  clear() {
    /** step -> fence -> {values, at}: `at` is the entry's place among all, for the time. */
    this._held = new Map();
    /** fence -> the lowest step that it has reported. */
    this._floors = new Map();
    this._rows = null;
    /** The furthest entry that was added. */
    this.last = "0-0";
  }

  /** Take entries in; true when there was one. */
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

  /** [{step, fence, entry, values}] in the order of the steps, each step once. */
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

  /** Every figure's name that some step has. */
  names() {
    const names = new Set();
    for (const row of this.rows()) for (const name of Object.keys(row.values)) names.add(name);
    return names;
  }
}

/** Entries are "number-number", as Redis has them: below 0, 0 or above 0, as a comes before b or after it. */
export function compareEntries(a, b) {
  const [aMain, aMinor] = a.split("-").map(Number);
  const [bMain, bMinor] = b.split("-").map(Number);
  return aMain - bMain || (aMinor || 0) - (bMinor || 0);
}

/**
 * Where each row lies on the x axis. "step": the step. "time": hours since the first row, by the time that the
 * row or its entry carries, else by the steps' own seconds added up.
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

// Redis names entries by milliseconds; a file's entries are byte offsets, far below any time of this century.
function stamp(row) {
  if (typeof row.values.time === "number") return row.values.time;
  const main = Number(row.entry.split("-")[0]);
  return main > 1e12 ? main / 1000 : null;
}
