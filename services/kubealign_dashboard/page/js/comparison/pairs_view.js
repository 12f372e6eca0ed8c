// The pairs of a comparison: filter, order and pages.

import { address, get, jobPath } from "../core/api.js";
import { button, failure, field, notice, select } from "../core/components.js";
import { fill, h, say } from "../core/dom.js";
import { number } from "../core/format.js";
import { labelForm, PAIR_VERDICTS, RESPONSE_VERDICTS } from "./label_form.js";
import { LabelStore } from "./label_store.js";
import { signed } from "./metric_table.js";
import { pairCard } from "./pair_card.js";
import { split } from "./side_picker.js";

const PAGE = 10;
const SHOWN = [["all", "All"], ["different", "Scores differ"], ["left", "Left is higher"], ["right", "Right is higher"]];
const ORDERS = [["difference", "Largest difference"], ["gain", "Right minus left, descending"],
  ["loss", "Right minus left, ascending"], ["row", "As in the data"]];

export class PairsView {
  /** `go` changes the page's state. `readOnly`: labels are shown and cannot be given. */
  constructor(go, readOnly) {
    this._go = go;
    this._readOnly = readOnly;
    this._over = new AbortController();
    this._tools = h("div", { class: "row", role: "group", "aria-label": "Filter and order" });
    this._summary = h("p", { class: "summary", role: "status" });
    this._labels = new LabelStore();
    this._exports = h("p", { class: "row" });
    this._list = h("div", { class: "compareds" });
    this._pages = h("nav", { class: "pages", "aria-label": "Pages of the pairs" });
    this.element = h("section", { class: "pairs", "aria-labelledby": "pairs-title" },
      h("h2", { id: "pairs-title", tabindex: "-1" }, "Responses to the same prompts"), this._tools, this._summary, this._exports,
      this._list, this._pages);
  }

  /** Show the pairs of a state in which both sides have a job and a step. */
  async show(state) {
    const query = comparisonQuery(state);
    const text = JSON.stringify([state.left, query]);
    if (text === this._shown) return;
    this._shown = text;
    this._over.abort();
    this._over = new AbortController();
    const { signal } = this._over;
    try {
      const [namespace, name] = split(state.left);
      const page = await get(jobPath({ namespace, name }, "comparison"), query, signal);
      const problem = await this._fetchLabels(page, signal);
      if (!signal.aborted) this._draw(state, page, problem);
    } catch (error) {
      if (signal.aborted) return;
      for (const part of [this._tools, this._exports, this._pages]) fill(part);
      this._summary.textContent = "";
      // Nothing is wrong with a step whose responses are not stored.
      fill(this._list, error.status === 409 ? notice("There is nothing to compare.", error.message)
        : failure(error, () => this._again(state)));
    }
  }

  close() {
    this._over.abort();
  }

  _again(state) {
    this._shown = "";
    this.show(state);
  }

  // Without the right to read labels the comparison is shown without them; the error's text, or an empty one.
  async _fetchLabels({ left, right }, signal) {
    const isSameJob = left.namespace === right.namespace && left.name === right.name;
    try {
      this._labels = await LabelStore.fetch(isSameJob ? [left] : [left, right], signal);
    } catch (error) {
      if (signal.aborted) throw error;
      return error.message;
    }
    return "";
  }

  _forms(pair, page) {
    const readOnly = this._readOnly;
    const { left, right } = page;
    const form = (title, verdicts, subject, sides, refused) => labelForm(title, verdicts, { readOnly, refused,
      read: () => this._labels.seen(subject, sides[0]),
      save: (label) => this._labels.save(pair.id, sides[0], sides[1] ?? null, label) });
    const refused = pair.left.response === pair.right.response ? ["left", "right"] : [];
    return {
      pair: form("Label of this pair", PAIR_VERDICTS, pair.subject, [left, right], refused),
      left: form("Label of the left response", RESPONSE_VERDICTS, pair.left.subject, [left]),
      right: form("Label of the right response", RESPONSE_VERDICTS, pair.right.subject, [right]),
    };
  }

  _drawExports({ left, right }, problem) {
    if (problem) {
      fill(this._exports, h("span", { class: "quiet" }, `Labels are not shown: ${problem}`));
      return;
    }
    const jobs = new Map([left, right].map((side) => [`${side.namespace}/${side.name}`, side]));
    fill(this._exports, h("span", { class: "quiet" }, "Labels of a pair are stored with the left job."),
      [...jobs].flatMap(([title, side]) => [["preferences", "Preferences"], ["unpaired", "Unpaired rows"]].map(([format, text]) =>
        h("a", { href: address(jobPath(side, "labels/export"), { format }), download: "" }, `${text} of ${title}`))));
  }

  _draw(state, page, problem) {
    const { focused } = this;
    fill(this._tools,
      field("Score", select(page.scores.map((name) => [name, name]), page.score, (score) => this._turn({ score }))),
      field("Show", select(SHOWN, state.show, (show) => this._turn({ show }))),
      field("Order", select(ORDERS, state.sort, (sort) => this._turn({ sort }))),
      page.sets.length > 1 && field("Evaluation set", select([["", "All"], ...page.sets.map((name) => [name, name])],
        state.set ?? "", (set) => this._turn({ set: set === "" ? null : set }))));
    this._refocus(focused);
    this._summary.textContent = summaryOf(page);
    this._drawExports(page, problem);
    const titles = [["Left", page.left], ["Right", page.right]].map(
      ([side, { name, step }]) => `${side}: ${name}, step ${step}`);
    const first = (state.page - 1) * PAGE;
    fill(this._list, page.items.length === 0 ? notice("No pair matches.")
      : page.items.map((pair, index) => pairCard(pair, `Pair ${first + index + 1} of ${page.total}`, titles,
        problem ? {} : this._forms(pair, page))));
    this._drawPages(state.page, Math.ceil(page.total / PAGE));
    say(`${page.total} pairs`);
  }

  // The tools are drawn anew: the focus stays on the one that was used.
  get focused() {
    return [...this._tools.querySelectorAll("select")].indexOf(document.activeElement);
  }

  _refocus(index) {
    if (index >= 0) this._tools.querySelectorAll("select")[index]?.focus();
  }

  _drawPages(page, pages) {
    const turn = (to) => {
      this._go({ page: to });
      const title = this.element.querySelector("h2");
      title.focus({ preventScroll: true });
      title.scrollIntoView({ block: "start" });
    };
    fill(this._pages, pages > 1 && [
      button("Previous page", () => turn(page - 1), { kind: "quiet", disabled: page <= 1 }),
      h("span", {}, `Page ${page} of ${pages}`),
      button("Next page", () => turn(page + 1), { kind: "quiet", disabled: page >= pages })]);
  }

  _turn(change) {
    this._go({ ...change, page: 1 });
  }
}

/** The query of the comparison request. */
export function comparisonQuery(state) {
  const [otherNamespace, otherName] = split(state.right);
  const query = [["step", state.leftStep], ["otherNamespace", otherNamespace], ["otherName", otherName],
    ["otherStep", state.rightStep], ["show", state.show], ["sort", state.sort], ["offset", (state.page - 1) * PAGE],
    ["limit", PAGE]];
  if (state.score) query.push(["score", state.score]);
  if (state.set !== null) query.push(["set", state.set]);
  return query;
}

function summaryOf(page) {
  const parts = [`${page.pairs} prompts that both answered`, `${page.score}: right higher in ${page.rightHigher}, left higher in ${page.leftHigher}, equal in ${page.equal}`];
  if (page.unscored) parts.push(`without a score in ${page.unscored}`);
  if (page.meanDifference !== null) parts.push(`mean of right minus left ${signed(page.meanDifference)}`);
  if (page.unpairedLeft || page.unpairedRight) {
    parts.push(`answered by left only ${number(page.unpairedLeft)}, by right only ${number(page.unpairedRight)}`);
  }
  return `${parts.join(" · ")}.`;
}
