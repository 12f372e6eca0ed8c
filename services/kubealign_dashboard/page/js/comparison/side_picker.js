// The choice of one side: a job, and a step at which it was validated.

import { Overlaid } from "../curves/overlaid_runs.js";
import { field } from "../core/components.js";
import { fill, h } from "../core/dom.js";
import { jobSearch } from "../core/job_search.js";
import { jobHash } from "../core/url_state.js";
import { validatedSteps } from "./metric_rows.js";

/**
 * One side of a comparison. `told`: {job(NAMESPACE/NAME), step(number), changed()}; `changed` is called when the job's
 * metrics have arrived, or have changed.
 */
export class SidePicker {
  constructor(title, namespace, told) {
    this._told = told;
    this._job = null;
    this._run = null;
    this._search = jobSearch("Job", { namespace, choose: told.job, placeholder: "name of a job" });
    this._step = h("select", { on: { change: (event) => told.step(Number(event.target.value)) } });
    this._link = h("a", {}, "Open the job");
    this._problem = h("p", { class: "bad", role: "status" });
    this.element = h("fieldset", { class: "side" }, h("legend", {}, title),
      h("div", { class: "row" }, this._search.element, field("Step", this._step), this._link), this._problem);
  }

  /** The steps with a validation; null until the metrics have arrived. */
  get steps() {
    return this._loaded ? validatedSteps(this._run.series.rows()) : null;
  }

  /** The metrics of a step: name -> value. */
  metrics(step) {
    return this._run?.series.rows().find((row) => row.step === step)?.values ?? {};
  }

  show(job, step) {
    this._search.show(job);
    if (job !== this._job) this._follow(job);
    this._link.hidden = job === "";
    if (job) this._link.href = jobHash(...split(job));
    this._drawSteps(step);
  }

  close() {
    this._run?.close();
  }

  _follow(job) {
    this._run?.close();
    this._job = job;
    this._loaded = false;
    this._problem.textContent = "";
    this._run = job === "" ? null : new Overlaid(job, () => {
      this._loaded = true;
      this._told.changed();
    }, (error) => {
      this._problem.textContent = error.message;
    });
  }

  _drawSteps(step) {
    const steps = this.steps ?? [];
    const offered = step === null || steps.includes(step) ? steps : [...steps, step].sort((a, b) => a - b);
    this._step.disabled = offered.length === 0;
    const text = offered.join();
    if (text !== this._offered) {
      this._offered = text;
      fill(this._step, offered.map((one) => h("option", { value: one }, String(one))));
    }
    if (step !== null) this._step.value = String(step);
  }
}

/** [namespace, name] of NAMESPACE/NAME. */
export function split(job) {
  const slash = job.indexOf("/");
  return [job.slice(0, slash), job.slice(slash + 1)];
}
