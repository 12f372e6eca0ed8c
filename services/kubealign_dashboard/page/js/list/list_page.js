// The job list: filters, table, pages. Its state is in the URL; filtering and sorting happen on the server.

import { get } from "../core/api.js";
import { fill, h, say } from "../core/dom.js";
import { JobRows } from "./list_rows.js";
import { filters } from "./list_filters.js";
import { LiveStream } from "../core/live_stream.js";
import { button, failure, notice } from "../core/components.js";
import { count } from "../core/format.js";
import { listQuery } from "../core/url_state.js";

const PAGE = 50;
const AGAIN_MS = 1500;
const AGES_MS = 10000;

/** A view: `element`, `show(state)`, `close()`. `go(state)` changes the URL. */
export class ListPage {
  constructor(app) {
    this._app = app;
    this._over = new AbortController();
    this._before = new Map();
    this._rows = new JobRows((sort) => this._turn({ sort }));
    this._filters = filters(app, (change) => this._turn(change));
    this._body = h("div", { class: "listing" });
    this._pages = h("nav", { class: "pages", "aria-label": "Pages of the list" });
    this.element = h("section", { class: "list", "aria-labelledby": "list-title" },
      h("div", { class: "row head" }, h("h1", { id: "list-title" }, "Jobs"), app.submitButton()),
      this._filters.element, this._body, this._pages);
    this._keys = (event) => this._pressed(event);
    document.addEventListener("keydown", this._keys);
    this._ages = setInterval(() => this._rows.older(), AGES_MS);
  }

  show(state) {
    const first = this._state === undefined;
    const moved = first || state.namespace !== this._state.namespace;
    this._state = state;
    document.title = "Jobs · kubealign";
    this._filters.show(state);
    if (first) fill(this._body, h("p", { class: "quiet", role: "status" }, "Loading the jobs…"));
    this._load();
    if (moved) this._follow();
  }

  close() {
    this._over.abort();
    this._stream?.close();
    clearTimeout(this._soon);
    clearInterval(this._ages);
    document.removeEventListener("keydown", this._keys);
  }

  _follow() {
    this._stream?.close();
    const query = this._state.namespace ? { namespace: this._state.namespace } : {};
    this._stream = new LiveStream("stream", query, "session", {
      jobs: ({ items }) => {
        const strangers = items.filter((item) => !this._rows.update(item));
        if (strangers.length) this._again();
      },
      gone: () => this._again(),
      reset: () => this._again(),
    }, (state, error) => (state === "refused" ? this._app.refused(error) : this._app.live(state)));
  }

  // A burst of changes causes one request.
  _again() {
    this._soon ??= setTimeout(() => {
      this._soon = undefined;
      this._load();
    }, AGAIN_MS);
  }

  async _load() {
    const state = this._state;
    const place = state.namespace ? `namespaces/${encodeURIComponent(state.namespace)}/alignmentjobs` : "alignmentjobs";
    let page;
    try {
      page = await get(place, listQuery(state, PAGE), this._over.signal);
    } catch (error) {
      if (this._over.signal.aborted || state !== this._state) return;
      if (error.status === 401) this._app.refused(error);
      else fill(this._body, failure(error, () => this._load()));
      return;
    }
    if (state === this._state && !this._over.signal.aborted) this._draw(page);
  }

  _draw({ items, metadata }) {
    this._filters.learn(items.map((item) => item.metadata.namespace));
    const from = Number(this._state.from || 0);
    const total = metadata.total ?? (metadata.remainingItemCount === undefined || metadata.remainingItemCount === null
      ? null : from + items.length + metadata.remainingItemCount);
    if (items.length) {
      this._rows.draw(items, this._state.sort, !this._state.namespace);
      if (this._rows.element.parentNode !== this._body) fill(this._body, this._rows.element);
    } else {
      fill(this._body, this._nothing());
    }
    const words = items.length
      ? `${count(from + 1)}–${count(from + items.length)}${total === null ? "" : ` of ${count(total)}`}` : "no jobs";
    this._drawPages(metadata.continue ?? "", words, from + items.length);
    say(`${words} jobs`.replace("jobs jobs", "jobs"));
  }

  _drawPages(next, words, following) {
    const here = this._state.continue;
    if (next) this._before.set(next, { continue: here, from: this._state.from });
    const before = this._before.get(here);
    const focused = this._pages.contains(document.activeElement) ? document.activeElement.textContent : "";
    fill(this._pages, h("span", { class: "quiet" }, words),
      here && button("First", () => this._turn({})),
      button("Previous", () => this._move(before), { disabled: before === undefined }),
      button("Next", () => this._move({ continue: next, from: String(following) }), { disabled: !next }));
    [...this._pages.querySelectorAll("button")].find((one) => focused && one.textContent === focused)?.focus();
  }

  _nothing() {
    const { phases, algorithms, search, label, namespace } = this._state;
    if (phases.length || algorithms.length || search || label || namespace) {
      return notice("No job matches these filters.", "Take some of them away to see more.",
        button("Clear the filters", () => this._app.go({ view: "list" })));
    }
    return h("div", { class: "notice" }, h("p", { class: "what" }, "There are no jobs yet."),
      h("p", {}, "Write one and hand it in: "),
      h("pre", {}, "kubealign init ppo > job.yaml\nkubealign submit job.yaml"));
  }

  _turn(change) {
    this._app.go({ ...this._state, continue: "", from: "", ...change });
  }

  _move(place) {
    this._app.go({ ...this._state, ...place });
    scrollTo({ top: 0 });
  }

  _pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      this._filters.focus();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !event.target.closest?.("select, textarea")) {
      if (this._rows.move(event.key === "ArrowDown" ? 1 : -1)) event.preventDefault();
    }
  }
}
