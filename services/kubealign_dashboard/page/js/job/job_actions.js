// Buttons that act on a job.

import { jobPath, send } from "../core/api.js";
import { ask } from "../core/dialogs.js";
import { h, say } from "../core/dom.js";
import { button, field } from "../core/components.js";
import { possible } from "./job_progress.js";

/** The buttons for the job's state. `failed` receives the error of an action. */
export function actions(app, store, failed) {
  if (app.readOnly || !store.resource) return [];
  const can = possible(store.resource);
  const act = async (suspend) => {
    try {
      store.replace(await send("PUT", jobPath(store.ref, "suspend"), { suspend }));
    } catch (error) {
      failed(error);
    }
  };
  return [
    can.suspend && button("Suspend", () => act(true)),
    can.resume && button("Resume", () => act(false), { kind: "primary" }),
    can.scale && button("Scale", () => scale(store)),
    button("Delete", () => remove(app, store), { kind: "danger" }),
  ].filter(Boolean);
}

function scale(store) {
  const { spec, status } = store.resource;
  const replicas = h("input", { type: "number", min: 0, step: 1, required: true, class: "short",
    value: spec.rollout?.replicas ?? status?.rolloutReplicas ?? 1 });
  return ask({
    title: `Scale ${store.ref.name}`,
    body: h("div", {}, h("p", {}, "Rollout workers are added or removed while the job runs; unfinished work of a removed worker is repeated by another."),
      field("Rollout workers", replicas)),
    confirm: "Scale",
    act: async () => {
      const path = jobPath(store.ref, "scale");
      await send("PUT", path, { apiVersion: "autoscaling/v1", kind: "Scale", metadata: store.ref,
        spec: { replicas: replicas.valueAsNumber } });
      say(`${replicas.value} rollout workers requested`);
    },
  });
}

async function remove(app, store) {
  const local = app.session.site === "local";
  const done = await ask({
    title: `Delete ${store.ref.name}?`,
    body: h("p", {}, local
      ? "Its processes are stopped, and its run directory is deleted with all checkpoints and the result. This cannot be undone."
      : "Its pods are stopped, and its metrics are deleted. Volumes stay, with the checkpoints and the result."),
    confirm: "Delete",
    kind: "danger",
    act: () => send("DELETE", jobPath(store.ref)),
  });
  if (done) app.go({ view: "list" });
}
