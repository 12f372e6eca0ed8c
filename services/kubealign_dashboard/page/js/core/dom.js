// DOM helpers. Data enters the document only as text nodes and attributes, never as markup.

/**
 * Create an element. `attributes`: strings and numbers become attributes, booleans set or omit them; `on` holds
 * listeners, `data` the data-* attributes, `vars` CSS custom properties. Children: nodes, texts, lists of them;
 * null and false are omitted.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "vars") {
      for (const [key, held] of Object.entries(value)) element.style.setProperty(key, String(held));
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...kept(children));
  return element;
}

/** Flatten the children, without null and false; numbers become text. */
export function kept(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/** Replace all children of `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren(...kept(children));
  return parent;
}

/** Announce a text to screen readers without moving the focus. */
export function say(text) {
  const place = document.getElementById("spoken");
  if (place.textContent !== text) place.textContent = text;
}

let made = 0;

/** A unique element id. */
export function newId(prefix) {
  made += 1;
  return `${prefix}-${made}`;
}
