// Formats numbers, times and sizes for display. Pure.

/** A number in at most about seven characters; a dash for a missing one. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e6) text = String(value);
  else if (size >= 1e6 || size < 1e-3) text = value.toExponential(2).replace("e+", "e");
  else if (size >= 1000) text = value.toFixed(0);
  else if (size >= 100) text = value.toFixed(1);
  else if (size >= 1) text = value.toFixed(2);
  else text = value.toPrecision(3);
  return text.replace("-", "−");
}

/** An integer with thousands separators. */
export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-GB");
}

/** Seconds as 0.41 s, 42 s, 3 min 5 s, 2 h 10 min, 4 d 3 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 1) return `${number(seconds)} s`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return pair(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86400) return pair(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return pair(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

function pair(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** The age of an API timestamp in its largest unit, as in kubectl: 42s, 5m, 3h, 12d. */
export function age(time, now) {
  const then = Date.parse(time ?? "");
  if (Number.isNaN(then)) return "–";
  const seconds = Math.max(0, Math.floor((now - then) / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

/** Bytes with a binary prefix. */
export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

/** A fraction as percentage. */
export function share(value) {
  return value === null || value === undefined ? "–" : `${number(value * 100)} %`;
}

/** The text on one line, truncated to `most` characters. */
export function excerpt(text, most) {
  const line = (text ?? "").replace(/\s+/g, " ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** The local time of an API timestamp, with the date unless it is today. */
export function clock(time, now) {
  const then = new Date(time ?? "");
  if (Number.isNaN(then.getTime())) return "–";
  const hours = then.toLocaleTimeString("en-GB");
  const sameDay = then.toDateString() === new Date(now).toDateString();
  return sameDay ? hours : `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${hours}`;
}
