// The second job, whose curves are overlaid for comparison.

import { get, jobPath } from "../core/api.js";
import { StepSeries } from "../job/step_series.js";

const AGAIN_MS = 5000;
const PAGE = 1000;

/** The job's metrics, polled every few seconds until `close`; `changed` is called after each change. */
export class Overlaid {
  /** `text`: NAMESPACE/NAME. `failed` receives the error when it cannot be shown. */
  constructor(text, changed, failed) {
    const slash = text.indexOf("/");
    this.title = text;
    this.series = new StepSeries();
    this._ref = { namespace: text.slice(0, slash), name: text.slice(slash + 1) };
    this._over = new AbortController();
    this._changed = changed;
    this._failed = failed;
    this._fetch();
  }

  close() {
    this._over.abort();
    clearTimeout(this._timer);
  }

  async _fetch() {
    try {
      await this._catchUp();
    } catch (error) {
      if (this._over.signal.aborted) return;
      this._failed(error);
      // An unavailable dashboard is retried; a missing job is not.
      if (error.status !== 0 && error.status < 500) return;
    }
    if (this._over.signal.aborted) return;
    this._changed();
    this._timer = setTimeout(() => this._fetch(), AGAIN_MS);
  }

  // Fetch all entries after the last one, page by page.
  async _catchUp() {
    for (;;) {
      const query = { after: this.series.last, limit: PAGE };
      const { items } = await get(jobPath(this._ref, "metrics"), query, this._over.signal);
      this.series.add(items);
      if (items.length < PAGE) return;
    }
  }
}
