// Two validations side by side: of two jobs, or of two steps of one job.

import { notice } from "../core/components.js";
import { fill, h } from "../core/dom.js";
import { stepsToCompare } from "./metric_rows.js";
import { metricTables } from "./metric_table.js";
import { PairsView } from "./pairs_view.js";
import { SidePicker } from "./side_picker.js";

/** A view: `element`, `show(state)`, `close()`. */
export class ComparisonPage {
  constructor(app) {
    this._app = app;
    this._go = (change) => app.go({ ...this._state, ...change });
    this._left = this._side("Left", "left");
    this._right = this._side("Right", "right");
    this._pairs = new PairsView(this._go, app.readOnly);
    this._metrics = h("section", { class: "metrics", "aria-label": "Metrics" });
    this._body = h("div", { class: "comparison" });
    this.element = h("section", { class: "compare", "aria-labelledby": "compare-title" },
      h("h1", { id: "compare-title" }, "Compare validations"),
      h("div", { class: "sides" }, this._left.element, this._right.element), this._body);
  }

  show(state) {
    this._state = state;
    document.title = "Compare · kubealign";
    this._app.live("closed");
    this._left.show(state.left, state.leftStep);
    this._right.show(state.right, state.rightStep);
    if (this._chooseSteps()) return;
    this._draw();
  }

  close() {
    this._left.close();
    this._right.close();
    this._pairs.close();
  }

  _side(title, name) {
    return new SidePicker(title, this._app.session.namespace, {
      job: (job) => this._go({ [name]: job, [`${name}Step`]: null, page: 1 }),
      step: (step) => this._go({ [`${name}Step`]: step, page: 1 }),
      changed: () => this._state && this.show(this._state),
    });
  }

  // Put the default steps into the address, so that it names the same comparison later; true when it has changed.
  _chooseSteps() {
    const { left, right, leftStep, rightStep } = this._state;
    if (leftStep !== null && rightStep !== null) return false;
    const [leftSteps, rightSteps] = [this._left.steps, this._right.steps];
    if (leftSteps === null || rightSteps === null) return false;
    const [first, second] = stepsToCompare(leftSteps, rightSteps, left === right);
    const chosen = { leftStep: leftStep ?? first, rightStep: rightStep ?? second };
    if (chosen.leftStep === leftStep && chosen.rightStep === rightStep) return false;
    this._app.go({ ...this._state, ...chosen }, { replace: true });
    return true;
  }

  _draw() {
    const { left, right, leftStep, rightStep } = this._state;
    if (left === "" || right === "") {
      fill(this._body, notice("Choose a job for each side.", "Both sides may be the same job, with different steps."));
      return;
    }
    if (leftStep === null || rightStep === null) {
      const loaded = this._left.steps !== null && this._right.steps !== null;
      fill(this._body, loaded ? notice("A side has no validation yet.", "A job validates when its spec has validation.")
        : h("p", { class: "quiet", role: "status" }, "Loading the metrics…"));
      return;
    }
    if (this._pairs.element.parentNode !== this._body) fill(this._body, this._metrics, this._pairs.element);
    this._drawMetrics(this._left.metrics(leftStep), this._right.metrics(rightStep));
    this._pairs.show(this._state);
  }

  _drawMetrics(left, right) {
    const text = JSON.stringify([left, right]);
    if (text === this._drawn) return;
    this._drawn = text;
    fill(this._metrics, metricTables(left, right));
  }
}
