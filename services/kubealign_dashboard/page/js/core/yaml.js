// Formats a document as YAML. Pure.

const PLAIN = /^[A-Za-z_./][A-Za-z0-9_./@-]*$/;
// Characters that break lines in YAML, or are not allowed unescaped; JSON allows them.
const BREAKS = /[\u007f-\u00a0\u2028\u2029\ufeff]/g;
const MEANS_SOMETHING_ELSE = /^(true|false|yes|no|on|off|null|y|n|\.inf|\.nan)$/i;

/** Format a scalar: quoted when it would be parsed as another type. */
export function scalar(value) {
  if (value === null || value === undefined) return "null";
  // Without a decimal point some parsers read 1e-7 as text.
  if (typeof value !== "string") return String(value).replace(/^(-?\d+)e/, "$1.0e");
  if (PLAIN.test(value) && !MEANS_SOMETHING_ELSE.test(value)) return value;
  return JSON.stringify(value).replace(BREAKS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** True for a non-empty mapping or list. */
export function nested(value) {
  return value !== null && typeof value === "object" && Object.keys(value).length > 0;
}

/** The entries of a mapping or list: [[key or null, value], ...]. */
export function parts(value) {
  return Array.isArray(value) ? value.map((item) => [null, item]) : Object.entries(value);
}

/** Format a leaf: a scalar, or an empty mapping or list. */
export function leaf(value) {
  if (Array.isArray(value)) return "[]";
  return value !== null && typeof value === "object" ? "{}" : scalar(value);
}

/** Format the complete document. */
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

// Multi-line text uses YAML's block form when that represents it exactly.
function block(value) {
  return typeof value === "string" && /^\S[^\r\t\u007f-\u00a0\u2028\u2029\ufeff]*$/.test(value) && value.includes("\n") && !value.endsWith("\n");
}

function blockLines(text, indent) {
  return text.split("\n").map((line) => (line ? `${indent}  ${line}` : ""));
}
