// Requests to the REST API, beside which the page is served: under whatever prefix a proxy has put before both.

const ROOT = new URL("../../", import.meta.url);
const DEADLINE_MS = 20000;

/** A request that ended other than well. `status` 0: nobody answered. */
export class ApiError extends Error {
  constructor(status, title, detail, errors = []) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.errors = errors;
  }
}

/** An address of the API: `path` below /api/v1, `query` pairs or an object. */
export function address(path, query = []) {
  const url = new URL(`api/v1/${path}`, ROOT);
  const pairs = Array.isArray(query) ? query : Object.entries(query);
  for (const [name, value] of pairs) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.append(name, String(value));
  }
  return url;
}

/** A job's path below /api/v1, with what follows it. */
export function jobPath({ namespace, name }, rest = "") {
  const path = `namespaces/${encodeURIComponent(namespace)}/alignmentjobs/${encodeURIComponent(name)}`;
  return rest ? `${path}/${rest}` : path;
}

/** The answer to a GET, as JSON. Raises ApiError. */
export async function get(path, query, signal) {
  return (await answered(address(path, query), { signal })).json();
}

/** A request that changes something; the answer as JSON. Raises ApiError. */
export async function send(method, path, body, { query, type = "application/json" } = {}) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.body = typeof body === "string" ? body : JSON.stringify(body);
    options.headers["Content-Type"] = type;
  }
  const answer = await answered(address(path, query), options);
  const text = await answer.text();
  return text ? JSON.parse(text) : {};
}

/** The answer's lines of JSON as they come, until its end or the signal's. Raises ApiError. */
export async function* jsonLines(path, query, signal) {
  const answer = await answered(address(path, query), { signal }, 0);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
    if (done) return;
  }
}

/** Hand the token in once: the server answers with a cookie that scripts cannot read. Raises ApiError. */
export async function signIn(token) {
  await answered(address("session"), { method: "POST", headers: { "X-Kubealign-Token": token } });
}

/** Have the browser forget the token. Raises ApiError. */
export async function signOut() {
  await answered(address("session"), { method: "DELETE" });
}

async function answered(url, options, deadline = DEADLINE_MS) {
  const headers = { Accept: "application/json", "X-Requested-With": "kubealign", ...options.headers };
  const signals = [options.signal, deadline ? AbortSignal.timeout(deadline) : null].filter(Boolean);
  const signal = signals.length ? AbortSignal.any(signals) : undefined;
  let answer;
  try {
    answer = await fetch(url, { ...options, headers, signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw away();
  }
  if (answer.ok) return answer;
  throw await problem(answer);
}

function away() {
  return new ApiError(0, "The dashboard does not answer",
    "The dashboard does not answer. Is it still running, and is the network there?");
}

// RFC 9457, or whatever a proxy in between has to say.
async function problem(answer) {
  let held = {};
  try {
    held = await answer.json();
  } catch {
    held = { title: answer.statusText || `HTTP ${answer.status}` };
  }
  return new ApiError(answer.status, held.title ?? "", held.detail ?? "", held.errors ?? []);
}
