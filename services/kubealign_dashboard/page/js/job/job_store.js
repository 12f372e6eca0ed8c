// The state of one job: resource, metrics and processes.

import { jobPath } from "../core/api.js";
import { LiveStream } from "../core/live_stream.js";
import { StepSeries } from "./step_series.js";

/**
 * Events: "resource", "metrics", "roles", "samples" (detail: new samples, without tokens), "state" (of the
 * stream), "unreadable" (detail: kind of entries and reason; empty: none any more), "gone" and "refused"
 * (detail: the error).
 */
export class JobStore extends EventTarget {
  constructor(ref) {
    super();
    this.ref = ref;
    this.resource = null;
    this.series = new StepSeries();
    this.roles = [];
    this.state = "connecting";
    this._over = new AbortController();
  }

  /** Follow the job: the stream first delivers all past entries, then new ones. */
  start() {
    this._stream = new LiveStream(jobPath(this.ref, "stream"), {}, jobPath(this.ref), {
      job: (resource) => this._took("resource", () => { this.resource = resource; }),
      metrics: ({ items }) => this._took("metrics", () => this.series.add(items)),
      roles: ({ items }) => this._took("roles", () => { this.roles = items; }),
      samples: ({ items }) => this._say("samples", items),
      unreadable: (detail) => this._say("unreadable", detail),
      gone: () => this._say("gone"),
    }, (state, error) => this._turned(state, error));
  }

  close() {
    this._over.abort();
    this._stream?.close();
  }

  /** Take over the resource from an action's response. */
  replace(resource) {
    if (resource?.metadata?.name === this.ref.name) this._took("resource", () => { this.resource = resource; });
  }

  _turned(state, error) {
    if (state === "refused") return this._say("refused", error);
    this.state = state;
    return this._say("state");
  }

  _took(name, take) {
    take();
    this._say(name);
  }

  _say(name, detail = null) {
    if (!this._over.signal.aborted) this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
