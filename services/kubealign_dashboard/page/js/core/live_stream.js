// A stream of server-sent events that resumes after a disconnection.

import { address, get } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const HIDDEN_MS = 30000;

/**
 * A stream of events. `handlers`: by event name, each called with the parsed data. `probe`: a path whose response
 * tells why the stream failed. `onState` receives "connecting", "live", "reconnecting" and "closed", and "refused"
 * with the error when a retry is of no use: a missing right, or a missing job.
 *
 * A browser opens six connections to a server over all tabs: a tab that has been hidden for half a minute closes
 * its own, and resumes from the last event when it is shown again.
 */
export class LiveStream {
  constructor(path, query, probe, handlers, onState = () => {}) {
    this._path = path;
    this._query = query;
    this._probe = probe;
    this._handlers = handlers;
    this._onState = onState;
    this._last = "";
    this._wait = FIRST_WAIT_MS;
    this._timers = {};
    this._source = null;
    this._ended = false;
    this._watched = { visibilitychange: () => this._visible(), online: () => this._open(), offline: () => this._cut() };
    document.addEventListener("visibilitychange", this._watched.visibilitychange);
    addEventListener("online", this._watched.online);
    addEventListener("offline", this._watched.offline);
    this._state("connecting");
    this._open();
  }

  close() {
    this._ended = true;
    this._shut();
    document.removeEventListener("visibilitychange", this._watched.visibilitychange);
    removeEventListener("online", this._watched.online);
    removeEventListener("offline", this._watched.offline);
    this._state("closed");
  }

  _open() {
    if (this._ended) return;
    this._shut();
    const source = new EventSource(address(this._path, { ...this._query, lastEventId: this._last }));
    this._source = source;
    source.onopen = () => {
      this._wait = FIRST_WAIT_MS;
      this._state("live");
    };
    source.onerror = () => this._cut();
    for (const [name, handle] of Object.entries(this._handlers)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) this._last = event.lastEventId;
        handle(JSON.parse(event.data));
      });
    }
  }

  // EventSource retries after some errors and gives up after others: here one rule applies to all.
  _cut() {
    if (this._ended) return;
    this._shut();
    this._state("reconnecting");
    this._timers.again = setTimeout(() => {
      delete this._timers.again;
      this._ask();
    }, this._wait);
    this._wait = Math.min(LONGEST_WAIT_MS, this._wait * 2);
  }

  // An EventSource does not report why it failed; a plain request does.
  async _ask() {
    try {
      await get(this._probe);
    } catch (error) {
      if ([401, 403, 404].includes(error.status)) return this._refused(error);
      return this._cut();
    }
    return this._open();
  }

  _refused(error) {
    this.close();
    this._onState("refused", error);
  }

  _visible() {
    clearTimeout(this._timers.hidden);
    if (document.hidden) this._timers.hidden = setTimeout(() => this._shut(), HIDDEN_MS);
    else if (this._source === null && this._timers.again === undefined) this._open();
  }

  _shut() {
    clearTimeout(this._timers.again);
    delete this._timers.again;
    this._source?.close();
    this._source = null;
  }

  _state(state) {
    if (this._said !== state) this._onState(state);
    this._said = state;
  }
}
