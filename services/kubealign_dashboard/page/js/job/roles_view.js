// The processes of a job: state, heartbeat and throughput.

import { fill, h } from "../core/dom.js";
import { age, duration, number } from "../core/format.js";
import { notice, table } from "../core/components.js";

const OWN_COLUMNS = new Set(["role", "time", "version", "weight_version", "tokens_per_second", "running", "waiting"]);
const SILENT_SECONDS = 20;
const AGAIN_MS = 5000;

export class RolesView {
  constructor(store) {
    this._store = store;
    this.element = h("section", { class: "roles", "aria-label": "Roles" });
    this._changed = () => this._draw();
    store.addEventListener("roles", this._changed);
    store.addEventListener("resource", this._changed);
    this._timer = setInterval(this._changed, AGAIN_MS);
  }

  show() {
    this._draw();
  }

  close() {
    clearInterval(this._timer);
    this._store.removeEventListener("roles", this._changed);
    this._store.removeEventListener("resource", this._changed);
  }

  _draw() {
    if (!this.element.isConnected) return;
    const { roles, resource } = this._store;
    const text = JSON.stringify([roles, resource?.status?.phase]);
    if (text === this._drawn && this.element.firstChild) return;
    this._drawn = text;
    // Keep the focus and the position of the horizontally scrolling box.
    const focused = this.element.contains(document.activeElement);
    const left = this.element.querySelector(".scroll")?.scrollLeft ?? 0;
    fill(this.element, roles.length ? rolesTable(roles) : notice("This job has no processes.",
      "A job that is pending, suspended or finished has none."));
    const box = this.element.querySelector(".scroll");
    if (box) box.scrollLeft = left;
    if (focused) box?.focus({ preventScroll: true });
  }
}

function rolesTable(roles) {
  const columns = [{ title: "Process" }, { title: "Role" }, { title: "State" }, { title: "Weights", class: "figure" },
    { title: "Tokens/s", class: "figure" }, { title: "Running", class: "figure" }, { title: "Waiting", class: "figure" },
    { title: "Restarts", class: "figure" }, { title: "Heartbeat", class: "figure" }, { title: "Up for", class: "figure" },
    { title: "Says" }];
  return table("Processes of this job", columns, roles.map(row), { name: "stack" });
}

function row(process) {
  const says = process.says ?? {};
  return [h("span", { title: process.where ?? "" }, process.name), process.role, state(process),
    plain(says.weight_version ?? says.version), figure(says.tokens_per_second), plain(says.running), plain(says.waiting),
    String(process.restarts ?? 0), heartbeat(process), age(process.started, Date.now()), words(process, says)];
}

function state({ state: held }) {
  return h("span", { class: "state", data: { state: held } }, held);
}

function heartbeat({ state: held, silentSeconds }) {
  if (["Finished", "Failed", "Stopped", "Waiting"].includes(held)) return "–";
  if (silentSeconds === null || silentSeconds === undefined) return h("span", { class: "bad" }, "none");
  const text = `${duration(silentSeconds)} ago`;
  return silentSeconds > SILENT_SECONDS ? h("span", { class: "bad" }, text) : text;
}

function words(process, says) {
  const rest = Object.entries(says).filter(([name, value]) => !OWN_COLUMNS.has(name) && value !== null && value !== "");
  return h("span", { class: "says" }, process.message && h("span", { class: "message" }, process.message),
    rest.map(([name, value]) => h("span", { class: "said" }, `${name.replaceAll("_", " ")} ${told(value)}`)));
}

function told(value) {
  if (typeof value === "number") return number(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function plain(value) {
  return value === null || value === undefined ? "–" : String(value);
}

function figure(value) {
  return typeof value === "number" ? number(value) : "–";
}
