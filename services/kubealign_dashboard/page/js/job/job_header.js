// The header of a job's page: name, phase, progress, message and key values.

import { fill, h, say } from "../core/dom.js";
import { age, clock, duration, number } from "../core/format.js";
import { actions } from "./job_actions.js";
import { failure, phaseBadge, stepBar } from "../core/components.js";
import { algorithmOf, progress } from "./job_progress.js";

const AGAIN_MS = 10000;

export class JobHeader {
  constructor(app, store) {
    this._app = app;
    this._store = store;
    this._badge = h("span");
    this._buttons = h("div", { class: "row actions" });
    this._message = h("p", { class: "message" });
    this._problem = h("div");
    this._steps = h("div", { class: "row progress" });
    this._facts = h("dl", { class: "facts" });
    this._conditions = h("details", { class: "conditions" }, h("summary", {}, "Conditions"), h("dl"));
    const { namespace, name } = store.ref;
    this.element = h("header", { class: "jobhead" },
      h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Jobs"), " / ", namespace),
      h("div", { class: "row head" }, h("h1", {}, name), this._badge, this._buttons),
      this._message, this._problem, h("div", { class: "row told" }, this._steps, this._facts), this._conditions);
    this._changed = () => this._draw();
    store.addEventListener("resource", this._changed);
    store.addEventListener("metrics", this._changed);
    this._timer = setInterval(this._changed, AGAIN_MS);
  }

  close() {
    clearInterval(this._timer);
    this._store.removeEventListener("resource", this._changed);
    this._store.removeEventListener("metrics", this._changed);
  }

  _draw() {
    const { resource, series } = this._store;
    if (!resource) return;
    const status = resource.status ?? {};
    this._drawPhase(status.phase ?? "", resource);
    this._message.textContent = status.message ?? "";
    const rows = series.rows();
    const how = progress(resource, rows);
    fill(this._steps, stepBar(how), h("span", { class: "quiet" },
      how.left === null ? "" : `about ${duration(how.left)} left`));
    const newest = rows[rows.length - 1]?.values ?? {};
    fill(this._facts, facts(resource, status, newest).map(
      ([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    this._drawConditions(status.conditions ?? []);
  }

  // The buttons are only replaced when the phase changes: the user may be about to press one.
  _drawPhase(phase, resource) {
    const key = `${phase} ${resource.spec?.suspend ?? false}`;
    if (key === this._phase) return;
    if (this._phase !== undefined) say(`${this._store.ref.name} is ${phase.toLowerCase()}`);
    this._phase = key;
    fill(this._badge, phaseBadge(phase));
    const focused = this._buttons.contains(document.activeElement);
    fill(this._buttons, actions(this._app, this._store, (error) => {
      fill(this._problem, failure(error));
      setTimeout(() => fill(this._problem), AGAIN_MS);
    }));
    if (focused) this._buttons.querySelector("button")?.focus();
  }

  _drawConditions(conditions) {
    this._conditions.hidden = conditions.length === 0;
    fill(this._conditions.querySelector("dl"), conditions.map((held) => h("div", {},
      h("dt", {}, `${held.type} ${held.status}`),
      h("dd", {}, held.reason, held.message && `: ${held.message}`,
        h("span", { class: "quiet" }, ` ${clock(held.lastTransitionTime, Date.now())}`)))));
  }
}

function facts(resource, status, newest) {
  const reward = newest["reward/mean"] ?? status.reward;
  const kl = newest["kl/reference"] ?? status.kl;
  const roles = (status.roles ?? []).map(({ name, ready, replicas }) => `${name} ${ready}/${replicas}`).join(", ");
  return [
    ["Algorithm", algorithmOf(resource)],
    reward !== undefined && reward !== null && ["Reward", number(reward)],
    kl !== undefined && kl !== null && ["KL", number(kl)],
    newest.tokens_per_second !== undefined && ["Tokens/s", number(newest.tokens_per_second)],
    newest["rollout/staleness"] !== undefined && ["Staleness", number(newest["rollout/staleness"])],
    ["Weight version", status.weightVersion === undefined || status.weightVersion === null ? "–" : String(status.weightVersion)],
    ["Restarts", String(status.restarts ?? 0)],
    ["Age", age(resource.metadata?.creationTimestamp, Date.now())],
    status.completionTime && status.startTime
      && ["Took", duration((Date.parse(status.completionTime) - Date.parse(status.startTime)) / 1000)],
    roles && ["Ready", roles],
    status.result?.path && ["Result", [status.result.claimName, status.result.path].filter(Boolean).join(": ")],
  ].filter(Boolean);
}
