// A job's page: header, health and tabs; samples may be shown next to the curves.

import { CurvesView } from "../curves/curves_view.js";
import { fill, h, say } from "../core/dom.js";
import { EventsView } from "./events_view.js";
import { HealthPanel } from "./health_panel.js";
import { JobHeader } from "./job_header.js";
import { JobStore } from "./job_store.js";
import { LogsView } from "./logs_view.js";
import { notice } from "../core/components.js";
import { RolesView } from "./roles_view.js";
import { SamplesView } from "../samples/samples_view.js";
import { SpecView } from "./spec_view.js";
import { compareHash, format } from "../core/url_state.js";

const TABS = [["curves", "Curves"], ["samples", "Samples"], ["roles", "Roles"], ["logs", "Logs"], ["spec", "Spec"],
  ["events", "Events"]];

/** A view: `element`, `show(state)`, `close()`. */
export class JobPage {
  constructor(app, { namespace, name }) {
    this._app = app;
    this._store = new JobStore({ namespace, name });
    this._go = (change) => app.go({ ...this._state, ...change });
    this._header = new JobHeader(app, this._store);
    this._health = new HealthPanel(this._store, (metric) => this._reveal(metric));
    this._unreadable = new Map();
    this._warnings = h("div", { role: "status" });
    this._links = new Map(TABS.map(([tab, text]) => [tab, h("a", {}, text)]));
    this._tabs = h("nav", { class: "tabs", "aria-label": "Parts of the job" }, [...this._links.values(),
      h("a", { href: compareHash(namespace, name) }, "Compare")]);
    this._place = h("div", { class: "part" });
    this._beside = h("aside", { class: "besides", "aria-label": "Samples of the chosen step", hidden: true });
    this._views = new Map();
    this._panel = null;
    this.element = h("div", { class: "job" }, this._header.element, this._warnings, this._health.element,
      this._tabs,
      h("div", { class: "parts" }, this._place, this._beside));
    this._listen();
    this._store.start();
  }

  show(state) {
    this._state = state;
    document.title = `${state.name} · kubealign`;
    for (const [tab, link] of this._links) {
      link.href = format({ ...state, tab });
      if (tab === state.tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const view = this._view(state.tab);
    if (this._shown !== view) this._shown?.leave?.();
    this._shown = view;
    if (this._place.firstChild !== view.element) fill(this._place, view.element);
    view.show(state);
    this._showBeside(state);
  }

  close() {
    this._store.close();
    this._header.close();
    this._health.close();
    this._panel?.close();
    for (const view of this._views.values()) view.close();
  }

  _listen() {
    const store = this._store;
    this._app.live(store.state);
    store.addEventListener("state", () => this._app.live(store.state));
    store.addEventListener("unreadable", ({ detail }) => this._showUnreadable(detail));
    for (const kind of ["metrics", "samples"]) {
      store.addEventListener(kind, () => this._unreadable.has(kind) && this._showUnreadable({ kind, reason: "" }));
    }
    store.addEventListener("gone", () => this._gone());
    store.addEventListener("refused", ({ detail }) => {
      if (detail.status === 401) this._app.refused(detail);
      else this._gone(detail.message);
    });
  }

  // What a process of the job has stored and nobody can read, until it can be read again.
  _showUnreadable({ kind, reason }) {
    if (reason) this._unreadable.set(kind, reason);
    else this._unreadable.delete(kind);
    fill(this._warnings, [...this._unreadable.values()].map((words) => notice(words)));
  }

  _gone(words = "The job has been deleted.") {
    this.close();
    this._app.live("closed");
    say(words);
    fill(this.element, notice(words, "", h("a", { class: "button", href: "#/" }, "All jobs")));
  }

  _view(tab) {
    const make = {
      curves: () => new CurvesView(this._store, this._go),
      samples: () => new SamplesView(this._store, this._go),
      roles: () => new RolesView(this._store),
      logs: () => new LogsView(this._store),
      spec: () => new SpecView(this._store),
      events: () => new EventsView(this._store),
    };
    if (!this._views.has(tab)) this._views.set(tab, make[tab]());
    return this._views.get(tab);
  }

  // Clicking a step in the curves shows its samples next to them.
  _showBeside(state) {
    const wanted = state.tab === "curves" && state.step !== null;
    this._beside.hidden = !wanted;
    this.element.classList.toggle("split", wanted);
    if (!wanted) return;
    const first = this._panel === null;
    this._panel ??= new SamplesView(this._store, this._go, { beside: true });
    if (first) fill(this._beside, this._panel.element);
    this._panel.show(state);
    // On a narrow screen the panel is below the curves and easy to miss.
    if (this._stepShown !== state.step && matchMedia("(max-width: 1099px)").matches) this._beside.scrollIntoView();
    this._stepShown = state.step;
  }

  _reveal(metric) {
    if (this._state.tab !== "curves") this._go({ tab: "curves" });
    if (!this._view("curves").reveal(metric)) say(`${metric} has no curve yet`);
  }
}
