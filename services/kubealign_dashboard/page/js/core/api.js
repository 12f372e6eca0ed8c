// Client of the REST API. The API is addressed relative to the page, so that a proxy may add a prefix.

const ROOT = new URL("../../../", import.meta.url);
const DEADLINE_MS = 20000;

/** A failed request. `status` 0: no response. */
export class ApiError extends Error {
  constructor(status, title, detail, errors = []) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.errors = errors;
  }
}

/** A URL of the API: `path` below /api/v1, `query` pairs or an object. */
export function address(path, query = []) {
  const url = new URL(`api/v1/${path}`, ROOT);
  const pairs = Array.isArray(query) ? query : Object.entries(query);
  for (const [name, value] of pairs) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.append(name, String(value));
  }
  return url;
}

/** The path of a job below /api/v1, with an optional suffix. */
export function jobPath({ namespace, name }, rest = "") {
  const path = `namespaces/${encodeURIComponent(namespace)}/alignmentjobs/${encodeURIComponent(name)}`;
  return rest ? `${path}/${rest}` : path;
}

/** Send a GET request and return the JSON response. Throws ApiError. */
export async function get(path, query, signal) {
  return (await answered(address(path, query), { signal })).json();
}

/** Send a request that changes something and return the JSON response. Throws ApiError. */
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

/** Yield the JSON lines of a response until it ends or the signal aborts. Throws ApiError. */
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

/** Exchange the token for a cookie that scripts cannot read. Throws ApiError. */
export async function signIn(token) {
  await answered(address("session"), { method: "POST", headers: { "X-Kubealign-Token": token } });
}

/** Delete the cookie. Throws ApiError. */
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
    "The dashboard does not answer. Check that it is running and that the network works.");
}

// RFC 9457 problem details, or the response of a proxy.
async function problem(answer) {
  let held = {};
  try {
    held = await answer.json();
  } catch {
    held = { title: answer.statusText || `HTTP ${answer.status}` };
  }
  return new ApiError(answer.status, held.title ?? "", held.detail ?? "", held.errors ?? []);
}
