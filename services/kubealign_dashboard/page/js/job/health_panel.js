// Health findings of the job with their remedies.

import { get, jobPath } from "../core/api.js";
import { fill, h, say } from "../core/dom.js";
import { icon } from "../core/icons.js";
import { button } from "../core/components.js";

const AGAIN_MS = 8000;

export class HealthPanel {
  /** `reveal(metric)` shows the curve of a metric. */
  constructor(store, reveal) {
    this._store = store;
    this._reveal = reveal;
    this._over = new AbortController();
    this.element = h("section", { class: "health", "aria-label": "Health" });
    this._changed = () => this._again();
    store.addEventListener("metrics", this._changed);
    store.addEventListener("resource", this._changed);
    this._load();
  }

  close() {
    this._over.abort();
    clearTimeout(this._timer);
    this._store.removeEventListener("metrics", this._changed);
    this._store.removeEventListener("resource", this._changed);
  }

  _again() {
    this._timer ??= setTimeout(() => {
      this._timer = undefined;
      this._load();
    }, AGAIN_MS);
  }

  async _load() {
    try {
      const { items } = await get(jobPath(this._store.ref, "health"), [], this._over.signal);
      this._draw(items);
    } catch (error) {
      if (!this._over.signal.aborted && !this.element.firstChild) {
        fill(this.element, h("p", { class: "quiet" }, `The health checks failed: ${error.message}`));
      }
    }
  }

  _draw(findings) {
    const text = JSON.stringify(findings);
    if (text === this._drawn) return;
    this._drawn = text;
    const open = new Set([...this.element.querySelectorAll("details[open]")].map((one) => one.dataset.title));
    const first = !this.element.firstChild;
    if (!findings.length) {
      fill(this.element, h("p", { class: "well" }, icon("Succeeded"), "No problems found."));
      return;
    }
    fill(this.element, h("ul", {}, findings.map((finding) => h("li", {}, this._finding(finding, open)))));
    if (!first) say(findings.map(({ severity, title }) => `${severity}: ${title}`).join(". "));
  }

  _finding({ severity, title, detail, remedy, metric, anchor }, open) {
    const worst = severity === "Critical";
    return h("details", { class: "finding", data: { severity, title }, open: worst || open.has(title) },
      h("summary", {}, h("span", { class: "severity" }, icon(severity), severity), h("span", { class: "title" }, title)),
      h("div", { class: "told" }, h("p", {}, detail), remedy && h("p", {}, h("strong", {}, "What to do: "), remedy),
        h("p", { class: "row" }, metric && button(`Show ${metric}`, () => this._reveal(metric), { kind: "quiet" }),
          anchor && h("span", { class: "quiet" }, "More in ", h("code", {}, `docs/cookbook.md#${anchor}`)))));
  }
}
