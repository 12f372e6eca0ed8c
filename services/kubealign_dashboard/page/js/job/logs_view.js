// Live logs of the processes.

import { jobPath, jsonLines } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { matches, readLine } from "./log_line.js";
import { button, failure, field, select } from "../core/components.js";

const TAIL = 300;
const MOST_LINES = 4000;
const TYPING_MS = 150;

export class LogsView {
  constructor(store) {
    this._store = store;
    this._lines = [];
    this._process = "";
    this._filter = "";
    this._boxes = h("span");
    this._follow = h("input", { type: "checkbox", checked: true, on: { change: () => this._load() } });
    let timer;
    const filter = h("input", { type: "search", placeholder: "words", autocomplete: "off", on: { input: (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        this._filter = event.target.value.trim();
        this._drawAll();
      }, TYPING_MS);
    } } });
    this._said = h("p", { class: "quiet", role: "status" });
    this._box = h("div", { class: "logs", tabindex: "0", role: "region", "aria-label": "Log lines" });
    this.element = h("section", { class: "logview", "aria-label": "Logs" },
      h("div", { class: "row" }, field("Process", this._boxes), field("Filter", filter),
        h("label", { class: "check" }, this._follow, "Follow"), button("To the end", () => this._end(), { kind: "quiet" })),
      this._said, this._box);
    this._changed = () => this._drawChoices();
    store.addEventListener("roles", this._changed);
  }

  show() {
    this._drawChoices();
    if (!this._reading) this._load();
  }

  /** Close the connection while the view is hidden. */
  leave() {
    this._reading?.abort();
    this._reading = null;
  }

  close() {
    this.leave();
    this._store.removeEventListener("roles", this._changed);
  }

  _drawChoices() {
    const roles = this._store.roles;
    const names = [...new Set(roles.map(({ role }) => role))];
    const options = [["", "all processes"], ...names.map((role) => [`role ${role}`, `all of ${role}`]),
      ...roles.map(({ name }) => [`process ${name}`, name])];
    const text = JSON.stringify(options);
    if (text === this._offered) return;
    this._offered = text;
    if (!options.some(([value]) => value === this._process)) options.push([this._process, this._process]);
    fill(this._boxes, select(options, this._process, (value) => {
      this._process = value;
      this._load();
    }));
  }

  async _load() {
    this._reading?.abort();
    const reading = new AbortController();
    this._reading = reading;
    this._lines = [];
    this._drawAll();
    const [kind, name] = this._process.split(" ");
    const query = { tail: TAIL, follow: this._follow.checked, [kind || "role"]: name ?? "" };
    this._said.textContent = "Reading…";
    try {
      for await (const line of jsonLines(jobPath(this._store.ref, "logs"), query, reading.signal)) {
        if (reading.signal.aborted) return;
        this._take({ process: String(line.process), text: String(line.text) });
      }
      this._said.textContent = this._lines.length ? "End of the log." : "No log lines yet.";
    } catch (error) {
      if (reading.signal.aborted) return;
      fill(this._said, "The stream ended. ");
      this._said.append(failure(error.status === undefined ? { message: "The connection was lost." } : error,
        () => this._load()));
    }
  }

  _take(line) {
    this._lines.push(line);
    if (this._lines.length > MOST_LINES) this._lines.splice(0, this._lines.length - MOST_LINES);
    this._waiting = [...(this._waiting ?? []), line];
    this._frame ??= requestAnimationFrame(() => {
      this._frame = undefined;
      this._append(this._waiting);
      this._waiting = [];
    });
  }

  _append(lines) {
    const { scrollTop, scrollHeight, clientHeight } = this._box;
    const atEnd = scrollHeight - scrollTop - clientHeight < 40;
    this._box.append(...this._wanted(lines).map(drawn));
    while (this._box.children.length > MOST_LINES) this._box.firstChild.remove();
    if (atEnd) this._end();
    const count = this._box.children.length;
    this._said.textContent = `${count} line${count === 1 ? "" : "s"}${this._follow.checked ? ", following" : ""}`;
  }

  _drawAll() {
    this._waiting = [];
    fill(this._box, this._wanted(this._lines).map(drawn));
    this._end();
  }

  _wanted(lines) {
    return this._filter ? lines.filter((line) => matches(line, this._filter)) : lines;
  }

  _end() {
    this._box.scrollTop = this._box.scrollHeight;
  }
}

function drawn({ process, text }) {
  const { time, level, text: message, rest } = readLine(text);
  return h("div", { class: "logline", data: { level } }, h("span", { class: "process" }, process),
    time && h("span", { class: "time" }, time), level && h("span", { class: "level" }, level),
    h("span", { class: "message" }, message), rest && h("span", { class: "rest" }, rest));
}
