// The dialog that submits a job as JSON.

import { ApiError, send } from "../core/api.js";
import { ask } from "../core/dialogs.js";
import { h } from "../core/dom.js";
import { field } from "../core/components.js";

/** Ask for a job's document, create the job, then show it. */
export async function submitDialog(app) {
  const document = h("textarea", { rows: 16, spellcheck: "false", required: true, placeholder:
    '{"apiVersion": "kubealign.dev/v1alpha1", "kind": "AlignmentJob", "metadata": {"name": "my-job"}, "spec": {}}' });
  let created = null;
  const done = await ask({
    title: "Submit a job",
    wide: true,
    confirm: "Submit",
    body: h("div", {},
      h("p", {}, "The complete document as JSON. For a YAML file, ", h("code", {}, "kubealign submit job.yaml"),
        " is the shorter way."),
      field("AlignmentJob", document, { wide: true })),
    act: async () => {
      const resource = read(document.value);
      const namespace = resource.metadata?.namespace ?? app.session.namespace;
      created = await send("POST", `namespaces/${encodeURIComponent(namespace)}/alignmentjobs`, resource);
    },
  });
  if (done) app.go({ view: "job", namespace: created.metadata.namespace, name: created.metadata.name });
}

function read(text) {
  try {
    const held = JSON.parse(text);
    if (held === null || typeof held !== "object") throw new SyntaxError("it is not an object");
    return held;
  } catch (error) {
    throw new ApiError(0, "This is not a JSON document", error.message);
  }
}
