// Confirmation dialogs.

import { h, newId } from "./dom.js";
import { button, failure } from "./components.js";

/**
 * Ask for confirmation, then await `act`; its error is shown in the dialog. `body`: nodes to show.
 * Returns true when `act` has succeeded.
 */
export function ask({ title, body, confirm, kind = "primary", act, wide = false }) {
  return new Promise((resolve) => {
    const heading = newId("dialog");
    const problem = h("div");
    const yes = button(confirm, null, { kind, type: "submit" });
    let done = false;
    const form = h("form", { method: "dialog", on: { submit: go } },
      h("h2", { id: heading }, title), body, problem,
      h("div", { class: "row end" }, button("Cancel", () => dialog.close(), { kind: "quiet" }), yes));
    const dialog = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": heading, on: { close: end } }, form);

    async function go(event) {
      event.preventDefault();
      yes.disabled = true;
      try {
        await act();
        done = true;
        dialog.close();
      } catch (error) {
        problem.replaceChildren(failure(error));
        yes.disabled = false;
      }
    }

    function end() {
      dialog.remove();
      resolve(done);
    }

    document.body.append(dialog);
    dialog.showModal();
  });
}
