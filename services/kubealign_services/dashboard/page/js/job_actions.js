// What can be done to a job.

import { jobPath, send } from "./api.js";
import { ask } from "./dialogs.js";
import { h, say } from "./dom.js";
import { button, field } from "./pieces.js";
import { possible } from "./progress.js";

/** The buttons that fit the job's state. `failed` hears why something did not work. */
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
    body: h("div", {}, h("p", {}, "Rollout workers come and go while the job runs; what one of them held is done again by another."),
      field("Rollout workers", replicas)),
    confirm: "Scale",
    act: async () => {
      const path = jobPath(store.ref, "scale");
      await send("PUT", path, { apiVersion: "autoscaling/v1", kind: "Scale", metadata: store.ref,
        spec: { replicas: replicas.valueAsNumber } });
      say(`${replicas.value} rollout workers are wanted`);
    },
  });
}

async function remove(app, store) {
  const local = app.session.site === "local";
  const done = await ask({
    title: `Delete ${store.ref.name}?`,
    body: h("p", {}, local
      ? "Its processes end, and its folder goes with all commits and its result. This cannot be undone."
      : "Its pods end, and its figures go. Volumes stay, with the commits and the result on them."),
    confirm: "Delete",
    kind: "danger",
    act: () => send("DELETE", jobPath(store.ref)),
  });
  if (done) app.go({ view: "list" });
}
