// Parses a line of a process's log. Pure.

const KNOWN = new Set(["time", "timestamp", "level", "severity", "message", "msg", "event", "job", "role", "process",
  "logger", "name", "namespace"]);

/** {time, level, text, rest} from the fields of a JSON line; text alone for any other line. */
export function readLine(text) {
  let held;
  try {
    held = JSON.parse(text);
  } catch {
    held = null;
  }
  if (held === null || typeof held !== "object" || Array.isArray(held)) {
    return { time: "", level: /\b(error|traceback|exception)\b/i.test(text) ? "error" : "", text, rest: "" };
  }
  const rest = Object.entries(held).filter(([key]) => !KNOWN.has(key));
  return {
    time: clock(held.time ?? held.timestamp),
    level: String(held.level ?? held.severity ?? "").toLowerCase(),
    text: String(held.message ?? held.msg ?? held.event ?? ""),
    rest: rest.map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" "),
  };
}

function clock(time) {
  const date = typeof time === "number" ? new Date(time * 1000) : new Date(time ?? "");
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleTimeString("en-GB");
}

/** True when the line or its process contains the words, case-insensitive. */
export function matches(line, words) {
  const held = `${line.process} ${line.text}`.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => held.includes(word));
}
