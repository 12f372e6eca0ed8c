// The rows of the job list. Changed rows are updated in place, which keeps focus and selection.

import { fill, h } from "../core/dom.js";
import { age, excerpt, number } from "../core/format.js";
import { phaseBadge, stepBar } from "../core/components.js";
import { algorithmOf, progress } from "../job/job_progress.js";
import { jobHash } from "../core/url_state.js";

const LONGEST_MESSAGE = 120;
const COLUMNS = [
  { title: "Name", sort: "name" }, { title: "Namespace" }, { title: "Algorithm" }, { title: "Phase", sort: "phase" },
  { title: "Steps", sort: "step" }, { title: "Reward", sort: "reward", class: "figure" },
  { title: "KL", class: "figure" }, { title: "Age", sort: "created", class: "figure" }, { title: "Message" },
];

export class JobRows {
  /** `sorted` is called with the new order: name, -created, ... */
  constructor(sorted) {
    this._sorted = sorted;
    this._held = new Map();
    this._head = h("thead", { role: "rowgroup" });
    this._body = h("tbody", { role: "rowgroup" });
    this.element = h("table", { class: "jobs", role: "table" },
      h("caption", { class: "unseen" }, "Jobs; arrow keys move between them, Enter opens one, / searches"),
      this._head, this._body);
  }

  draw(items, sort, namespaces) {
    this.element.classList.toggle("onespace", !namespaces);
    if (this._sort !== sort) this._drawHead(sort);
    this._sort = sort;
    const rows = new Map();
    for (const item of items) rows.set(key(item), this._held.get(key(item)) ?? newRow(item));
    this._held = rows;
    items.forEach((item) => this.update(item));
    const wanted = [...rows.values()].map(({ element }) => element);
    const same = wanted.length === this._body.children.length
      && wanted.every((element, index) => this._body.children[index] === element);
    if (!same) {
      const focused = document.activeElement;
      this._body.replaceChildren(...wanted);
      if (this._body.contains(focused)) focused.focus({ preventScroll: true });
    }
  }

  /** Update a job; false when it is not on this page. */
  update(resource) {
    const row = this._held.get(key(resource));
    if (row === undefined) return false;
    const text = JSON.stringify([resource.status, resource.metadata?.labels, resource.spec?.suspend]);
    if (row.text !== text) drawRow(row, resource);
    row.text = text;
    return true;
  }

  /** Say the ages anew. */
  older() {
    for (const { cells, created } of this._held.values()) fill(cells[7], age(created, Date.now()));
  }

  /** Focus the next (1) or previous (-1) job; false where there is none. */
  move(by) {
    const links = [...this._body.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement?.closest("tr")?.querySelector("a"));
    const next = links[at === -1 ? (by > 0 ? 0 : -1) : at + by];
    next?.focus();
    return next !== undefined;
  }

  _drawHead(sort) {
    const name = sort.replace(/^-/, "");
    const down = sort.startsWith("-");
    fill(this._head, h("tr", { role: "row" }, COLUMNS.map((column) => {
      const here = column.sort === name;
      // Age grows as the time of creation falls.
      const rising = column.sort === "created" ? down : !down;
      return h("th", { scope: "col", role: "columnheader", class: column.class ?? "",
        "aria-sort": here ? (rising ? "ascending" : "descending") : null },
      column.sort ? h("button", { type: "button", class: "sorter", on: {
        click: () => this._sorted(here ? reversed(sort) : firstOrder(column.sort)),
      } }, column.title, h("span", { class: "way", "aria-hidden": "true" }, here ? (rising ? "▲" : "▼") : "")) : column.title);
    })));
  }
}

function reversed(sort) {
  return sort.startsWith("-") ? sort.slice(1) : `-${sort}`;
}

function firstOrder(name) {
  return name === "name" || name === "phase" ? name : `-${name}`;
}

function key(resource) {
  return `${resource.metadata.namespace}/${resource.metadata.name}`;
}

function newRow(resource) {
  const cells = COLUMNS.map((column, index) => h(index === 0 ? "th" : "td", {
    class: column.class ?? "", scope: index === 0 ? "row" : null, role: index === 0 ? "rowheader" : "cell",
    data: { title: column.title } }));
  const { namespace, name } = resource.metadata;
  fill(cells[0], h("a", { href: jobHash(namespace, name) }, name));
  fill(cells[1], namespace);
  return { element: h("tr", { role: "row" }, cells), cells, created: resource.metadata.creationTimestamp };
}

function drawRow({ cells }, resource) {
  const status = resource.status ?? {};
  fill(cells[2], algorithmOf(resource));
  fill(cells[3], phaseBadge(status.phase));
  fill(cells[4], stepBar(progress(resource, [])));
  fill(cells[5], number(status.reward));
  fill(cells[6], number(status.kl));
  fill(cells[7], age(resource.metadata.creationTimestamp, Date.now()));
  fill(cells[8], h("span", { class: "message", title: status.message ?? "" }, excerpt(status.message, LONGEST_MESSAGE)));
}
