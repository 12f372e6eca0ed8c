// The page's state as URL hash, so that it can be bookmarked, shared and revisited. Pure.
// The path never changes, so that the page also works behind a proxy that adds a prefix.

const LIST_DEFAULTS = { sort: "-created", namespace: "", search: "", label: "", continue: "", from: "" };
const SORTS = ["name", "created", "phase", "step", "reward"];
const TABS = ["curves", "samples", "roles", "logs", "spec", "events"];

const COMPARE_DEFAULTS = { left: "", right: "", score: "", show: "all", sort: "difference" };
const SHOWN_PAIRS = ["all", "different", "left", "right"];
const PAIR_ORDERS = ["difference", "gain", "loss", "row"];

/**
 * {view: "list", ...filters}, {view: "job", namespace, name, tab, ...} or {view: "compare", left, right, ...};
 * anything else is the list.
 */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parameters = new URLSearchParams(query);
  const parts = path.split("/").filter(Boolean).map(decoded);
  if (parts[0] === "jobs" && parts.length === 3) return jobState(parts[1], parts[2], parameters);
  if (parts[0] === "compare" && parts.length === 1) return compareState(parameters);
  return listState(parameters);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function listState(parameters) {
  const state = { view: "list", phases: parameters.getAll("phase"), algorithms: parameters.getAll("algorithm") };
  for (const [name, fallback] of Object.entries(LIST_DEFAULTS)) state[name] = parameters.get(name) ?? fallback;
  if (!SORTS.includes(state.sort.replace(/^-/, ""))) state.sort = LIST_DEFAULTS.sort;
  return state;
}

function jobState(namespace, name, parameters) {
  const tab = parameters.get("tab");
  return {
    view: "job",
    namespace,
    name,
    tab: TABS.includes(tab) ? tab : TABS[0],
    step: whole(parameters.get("step")),
    versus: whole(parameters.get("versus")),
    sample: parameters.get("sample") ?? "",
    overlay: parameters.get("overlay") ?? "",
    axis: parameters.get("axis") === "time" ? "time" : "step",
  };
}

// `left` and `right`: NAMESPACE/NAME. `set`: null: all evaluation sets. `page`: from 1.
function compareState(parameters) {
  const state = { view: "compare", leftStep: whole(parameters.get("leftStep")), rightStep: whole(parameters.get("rightStep")),
    set: parameters.get("set"), page: whole(parameters.get("page")) || 1 };
  for (const [name, fallback] of Object.entries(COMPARE_DEFAULTS)) state[name] = parameters.get(name) ?? fallback;
  if (!SHOWN_PAIRS.includes(state.show)) state.show = COMPARE_DEFAULTS.show;
  if (!PAIR_ORDERS.includes(state.sort)) state.sort = COMPARE_DEFAULTS.sort;
  return state;
}

function whole(text) {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}

/** The hash of a state, without default values. */
export function format(state) {
  const parameters = new URLSearchParams();
  if (state.view === "job") {
    if (state.tab && state.tab !== TABS[0]) parameters.set("tab", state.tab);
    for (const name of ["step", "versus"]) {
      if (state[name] !== null && state[name] !== undefined) parameters.set(name, String(state[name]));
    }
    for (const name of ["sample", "overlay"]) if (state[name]) parameters.set(name, state[name]);
    if (state.axis === "time") parameters.set("axis", "time");
    return joined(`#/jobs/${encodeURIComponent(state.namespace)}/${encodeURIComponent(state.name)}`, parameters);
  }
  if (state.view === "compare") {
    for (const [name, fallback] of Object.entries(COMPARE_DEFAULTS)) {
      if (state[name] && state[name] !== fallback) parameters.set(name, state[name]);
    }
    for (const name of ["leftStep", "rightStep", "set"]) {
      if (state[name] !== null && state[name] !== undefined) parameters.set(name, String(state[name]));
    }
    if (state.page > 1) parameters.set("page", String(state.page));
    return joined("#/compare", parameters);
  }
  for (const phase of state.phases ?? []) parameters.append("phase", phase);
  for (const algorithm of state.algorithms ?? []) parameters.append("algorithm", algorithm);
  for (const [name, fallback] of Object.entries(LIST_DEFAULTS)) {
    if (state[name] && state[name] !== fallback) parameters.set(name, state[name]);
  }
  return joined("#/", parameters);
}

function joined(path, parameters) {
  const query = parameters.toString();
  return query ? `${path}?${query}` : path;
}

/** The hash of a job's page. */
export function jobHash(namespace, name) {
  return format({ view: "job", namespace, name });
}

/** The hash of the comparison of a job with itself. */
export function compareHash(namespace, name) {
  const job = `${namespace}/${name}`;
  return format({ view: "compare", left: job, right: job });
}

/** The query of the list request: [[name, value], ...]. */
export function listQuery(state, limit) {
  const query = [["limit", String(limit)], ["sort", state.sort]];
  for (const phase of state.phases) query.push(["phase", phase]);
  for (const algorithm of state.algorithms) query.push(["algorithm", algorithm]);
  if (state.search) query.push(["search", state.search]);
  if (state.label) query.push(["labelSelector", state.label]);
  if (state.continue) query.push(["continue", state.continue]);
  return query;
}
