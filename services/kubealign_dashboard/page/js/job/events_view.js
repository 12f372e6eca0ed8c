// Kubernetes events of the job, newest first.

import { get, jobPath } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { clock } from "../core/format.js";
import { failure, notice, table } from "../core/components.js";

const AGAIN_MS = 3000;

export class EventsView {
  constructor(store) {
    this._store = store;
    this._over = new AbortController();
    this.element = h("section", { class: "events", "aria-label": "Events" });
    this._changed = () => this._again();
    store.addEventListener("resource", this._changed);
    store.addEventListener("roles", this._changed);
  }

  show() {
    this._load();
  }

  close() {
    this._over.abort();
    clearTimeout(this._timer);
    this._store.removeEventListener("resource", this._changed);
    this._store.removeEventListener("roles", this._changed);
  }

  _again() {
    this._timer ??= setTimeout(() => {
      this._timer = undefined;
      if (this.element.isConnected) this._load();
    }, AGAIN_MS);
  }

  async _load() {
    try {
      const { items } = await get(jobPath(this._store.ref, "events"), [], this._over.signal);
      this._draw(items);
    } catch (error) {
      if (!this._over.signal.aborted) fill(this.element, failure(error, () => this._load()));
    }
  }

  _draw(items) {
    const text = JSON.stringify(items);
    if (text === this._drawn && this.element.firstChild) return;
    this._drawn = text;
    if (!items.length) {
      fill(this.element, notice("Nothing has happened yet.", "In a cluster events are kept for about an hour."));
      return;
    }
    const rows = [...items].reverse().map(({ time, type, reason, message, count }) => [
      h("time", { datetime: time, title: time }, clock(time, Date.now())),
      h("span", { class: type === "Warning" ? "bad" : "" }, type), reason, message, count > 1 ? `× ${count}` : ""]);
    fill(this.element, table("Events, newest first", [{ title: "Time" }, { title: "Type" }, { title: "Reason" },
      { title: "Message" }, { title: "Times", class: "figure" }], rows, { name: "stack" }));
  }
}
