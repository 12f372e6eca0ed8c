// The page's frame: top bar, routing and session.

import { get, signOut } from "./core/api.js";
import { fill, h, say } from "./core/dom.js";
import { ComparisonPage } from "./comparison/comparison_page.js";
import { icon } from "./core/icons.js";
import { JobPage } from "./job/job_page.js";
import { ListPage } from "./list/list_page.js";
import { button, failure } from "./core/components.js";
import { submitDialog } from "./list/submit_dialog.js";
import { onTheme, theme, toggle } from "./core/themes.js";
import { tokenForm } from "./core/sign_in_form.js";
import { format, parse } from "./core/url_state.js";

const LIVE_WORDS = { connecting: "connecting", live: "live", reconnecting: "reconnecting", closed: "" };

class App {
  constructor() {
    this.session = null;
    this._content = document.getElementById("content");
    this._liveState = h("span", { class: "live", role: "status", data: { state: "closed" } });
    this._view = null;
    this._drawBar();
    addEventListener("hashchange", () => this._route());
  }

  /** Load the session, then show the view of the URL. */
  async begin() {
    try {
      this.session = await get("session");
    } catch (error) {
      if (error.status === 401) this.refused(null);
      else this._instead(failure(error, () => this.begin()));
      return;
    }
    this._drawBar();
    this._at = null;
    this._shown = null;
    this._route();
  }

  get readOnly() {
    return this.session?.readOnly !== false;
  }

  /** Show this state and put it into the URL; `replace`: without an entry in the browser's history. */
  go(state, { replace = false } = {}) {
    const hash = format(parse(format(state)));
    if (replace) history.replaceState(null, "", hash);
    else if (location.hash !== hash) location.hash = hash;
    // Route at once, not only on the event: the next change builds on this state.
    this._route();
  }

  /** Show the sign-in form: the token is missing or no longer valid. */
  refused(error) {
    const refused = error ? "Your token has expired or is no longer valid." : "";
    this._instead(tokenForm(() => this.begin(), { refused }));
  }

  /** Show the state of the stream. */
  live(state) {
    this._liveState.dataset.state = state;
    const words = LIVE_WORDS[state];
    if (this._liveState.textContent !== words) this._liveState.textContent = words;
  }

  /** Announce a minor error: the view continues without the missing part. */
  quietly(error) {
    if (error.status === 401) this.refused(error);
    else say(error.message);
  }

  submitButton() {
    return this.readOnly ? null : button("Submit a job", () => submitDialog(this), { kind: "primary" });
  }

  _instead(element) {
    this._view?.close();
    this._view = null;
    this._at = null;
    this._shown = null;
    this.live("closed");
    fill(this._content, element);
  }

  _route() {
    if (!this.session || this._at === location.hash) return;
    this._at = location.hash;
    const state = parse(location.hash);
    const shown = state.view === "job" ? `job ${state.namespace}/${state.name}` : state.view;
    if (shown !== this._shown) {
      this._view?.close();
      this.live("connecting");
      this._view = this._viewOf(state);
      fill(this._content, this._view.element);
      if (this._shown) {
        this._content.focus({ preventScroll: true });
        scrollTo({ top: 0 });
      }
      this._shown = shown;
    }
    this._view.show(state);
  }

  _viewOf(state) {
    if (state.view === "job") return new JobPage(this, state);
    return state.view === "compare" ? new ComparisonPage(this) : new ListPage(this);
  }

  _drawBar() {
    const { user, site, namespace, version } = this.session ?? {};
    const place = site === "local" ? "this machine" : site === "cluster" ? `cluster, namespace ${namespace}` : "";
    fill(document.getElementById("bar"),
      h("a", { class: "brand", href: "#/" }, h("img", { src: "static/favicon.svg", alt: "", width: 22, height: 22 }),
        "kubealign"),
      h("span", { class: "where" }, [place, user, version].filter(Boolean).join(" · ")),
      this.session?.readOnly && h("span", { class: "tag" }, "read only"),
      this._liveState, site === "cluster" && button("Sign out", () => this._leave(), { kind: "quiet" }), themeButton());
  }

  async _leave() {
    await signOut().catch((error) => this.quietly(error));
    this.session = null;
    this._drawBar();
    this.refused(null);
  }
}

function themeButton() {
  const one = h("button", { type: "button", class: "button quiet square", on: { click: toggle } });
  const draw = () => {
    const other = theme() === "dark" ? "light" : "dark";
    one.setAttribute("aria-label", `Use the ${other} colours`);
    one.title = `Use the ${other} colours`;
    fill(one, icon(other === "dark" ? "moon" : "sun"));
  };
  onTheme(draw);
  draw();
  return one;
}

new App().begin();
