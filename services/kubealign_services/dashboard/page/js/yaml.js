// A document as YAML, for reading and for copying. Pure.

const PLAIN = /^[A-Za-z_./][A-Za-z0-9_./@-]*$/;
// YAML breaks lines at these, or does not allow them as they are; JSON does.
const BREAKS = /[\u007f-\u00a0\u2028\u2029\ufeff]/g;
const MEANS_SOMETHING_ELSE = /^(true|false|yes|no|on|off|null|y|n|\.inf|\.nan)$/i;

/** A scalar as YAML has it: quoted where it would be read as something else. */
export function scalar(value) {
  if (value === null || value === undefined) return "null";
  // Without a point some readers take 1e-7 for a text.
  if (typeof value !== "string") return String(value).replace(/^(-?\d+)e/, "$1.0e");
  if (PLAIN.test(value) && !MEANS_SOMETHING_ELSE.test(value)) return value;
  return JSON.stringify(value).replace(BREAKS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** True for what has parts of its own. */
export function nested(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

/** The parts of a mapping or list: [[key or null, value], ...]. */
export function parts(value) {
  return Array.isArray(value) ? value.map((item) => [null, item]) : Object.entries(value);
}

/** A leaf's text: a scalar, or an empty mapping or list. */
export function leaf(value) {
  if (Array.isArray(value)) return "[]";
  return value !== null && typeof value === "object" ? "{}" : scalar(value);
}

/** The whole document as text. */
export function toYaml(document) {
  return nested(document) ? `${lines(document, "").join("\n")}\n` : `${leaf(document)}\n`;
}

function lines(value, indent) {
  return parts(value).flatMap(([key, held]) => {
    const head = key === null ? `${indent}-` : `${indent}${scalar(key)}:`;
    if (!nested(held)) return block(held) ? [`${head} |-`, ...blockLines(held, indent)] : [`${head} ${leaf(held)}`];
    if (key !== null) return [head, ...lines(held, `${indent}  `)];
    const [first, ...rest] = lines(held, `${indent}  `);
    return [`${head} ${first.trimStart()}`, ...rest];
  });
}

// Text of several lines stays readable, where YAML's block form can hold it as it is.
function block(value) {
  return typeof value === "string" && /^\S[^\r\t\u007f-\u00a0\u2028\u2029\ufeff]*$/.test(value) && value.includes("\n") && !value.endsWith("\n");
}

function blockLines(text, indent) {
  return text.split("\n").map((line) => (line ? `${indent}  ${line}` : ""));
}
