// Tables of the validation metrics of both sides.

import { number } from "../core/format.js";
import { h } from "../core/dom.js";
import { table } from "../core/components.js";
import { metricGroups } from "./metric_rows.js";

const VERDICTS = { apart: "intervals apart", overlap: "intervals overlap", "": "" };

/** A table for each group. `left` and `right`: metric name -> value. */
export function metricTables(left, right) {
  return metricGroups(left, right).map(({ group, rows }) => {
    const columns = [{ title: "Metric" }, { title: "Left", class: "figure" }, { title: "Right", class: "figure" },
      { title: "Right minus left", class: "figure" }, { title: "Confidence intervals" }];
    return table(group ? `Validation metrics: ${group}` : "Validation metrics", columns, rows.map((row) => [
      shortName(row.name, group), written(row.left), written(row.right), difference(row),
      h("span", { class: `verdict ${row.verdict}` }, VERDICTS[row.verdict])]), { name: "stack" });
  });
}

function shortName(name, group) {
  return name.slice("val/".length).replace(group ? `${group}/` : "", "").replaceAll("_", " ").replaceAll("/", " ");
}

function written({ value, interval }) {
  return interval === null ? number(value) : `${number(value)} (${number(interval[0])} to ${number(interval[1])})`;
}

function difference(row) {
  return h("span", { class: row.verdict === "apart" ? "difference apart" : "difference" }, signed(row.difference));
}

/** The number with its sign. */
export function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}
