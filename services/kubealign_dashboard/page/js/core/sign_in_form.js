// The sign-in form, shown instead of the page when the request has no valid token.

import { signIn } from "./api.js";
import { fill, h } from "./dom.js";
import { button, failure, field } from "./components.js";

/** A form for the token. `entered` is called once the API has accepted one. */
export function tokenForm(entered, { refused = "" } = {}) {
  const input = h("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const problem = h("div");

  async function submit(event) {
    event.preventDefault();
    fill(problem);
    try {
      await signIn(input.value.trim());
    } catch (error) {
      const known = error.status === 401 ? { message: "This token is not known, or has expired." } : error;
      fill(problem, failure(known));
      input.select();
      return;
    }
    input.value = "";
    entered();
  }

  return h("section", { class: "signin", "aria-labelledby": "signin" },
    h("h1", { id: "signin" }, "Sign in"),
    refused && h("p", {}, refused),
    h("p", {}, "The dashboard acts with your own rights and needs a token for that."),
    h("dl", {},
      h("dt", {}, "In a cluster"),
      h("dd", {}, "Paste what ", h("code", {}, "kubectl create token SERVICE-ACCOUNT"), " prints."),
      h("dt", {}, "On your own machine"),
      h("dd", {}, "Open the whole address that ", h("code", {}, "kubealign dashboard"), " or ",
        h("code", {}, "kubealign run"), " has printed, with its token.")),
    h("form", { class: "row", on: { submit } },
      field("Token", input, { wide: true }), button("Enter", null, { kind: "primary", type: "submit" })),
    problem);
}
