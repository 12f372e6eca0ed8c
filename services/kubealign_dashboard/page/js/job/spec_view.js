// The job's applied document as a foldable YAML tree with a copy button.

import { fill, h, say } from "../core/dom.js";
import { button } from "../core/components.js";
import { leaf, nested, parts, scalar, toYaml } from "../core/yaml.js";

export class SpecView {
  constructor(store) {
    this._store = store;
    this._tree = h("div", { class: "yaml", tabindex: "0", role: "region", "aria-label": "The job as YAML" });
    this.element = h("section", { class: "specview", "aria-label": "Spec" },
      h("div", { class: "row" }, button("Copy as YAML", () => this._copy()),
        button("Unfold all", () => this._fold(true), { kind: "quiet" }),
        button("Fold all", () => this._fold(false), { kind: "quiet" })), this._tree);
    this._changed = () => this._draw();
    store.addEventListener("resource", this._changed);
  }

  show() {
    this._draw();
  }

  close() {
    this._store.removeEventListener("resource", this._changed);
  }

  _document() {
    const { apiVersion, kind, metadata = {}, spec } = this._store.resource ?? {};
    const { name, namespace, labels, annotations } = metadata;
    const kept = Object.fromEntries(Object.entries({ name, namespace, labels, annotations }).filter(
      ([, value]) => value !== undefined && value !== null && (typeof value !== "object" || Object.keys(value).length)));
    return { apiVersion, kind, metadata: kept, spec };
  }

  _draw() {
    if (!this._store.resource) return;
    const text = JSON.stringify(this._document());
    if (text === this._drawn) return;
    this._drawn = text;
    fill(this._tree, branch(this._document()));
  }

  _fold(open) {
    for (const one of this._tree.querySelectorAll("details")) one.open = open;
  }

  async _copy() {
    const text = toYaml(this._document());
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      // Browsers allow the clipboard only over https and on localhost: select the text instead.
      const plain = h("textarea", { rows: 20, readonly: true, "aria-label": "The job as YAML" });
      plain.value = text;
      fill(this._tree, plain);
      this._drawn = "";
      plain.select();
    }
  }
}

function branch(value) {
  return h("ul", {}, parts(value).map(([key, held]) => {
    const name = key === null ? "-" : `${scalar(key)}:`;
    if (!nested(held)) {
      return h("li", {}, h("span", { class: "key" }, name), " ", h("span", { class: `value ${typeof held}` }, shown(held)));
    }
    return h("li", {}, h("details", { open: true },
      h("summary", {}, h("span", { class: "key" }, name), h("span", { class: "hint" }, ` ${hint(held)}`)), branch(held)));
  }));
}

// The placeholder of a folded part.
function hint(held) {
  const [key, value] = parts(held)[0];
  const first = nested(value) ? "" : ` ${leaf(value)}`;
  return key === null ? `${held.length} items` : `${key}:${first}`;
}

function shown(value) {
  return typeof value === "string" && value.includes("\n") ? value : leaf(value);
}
