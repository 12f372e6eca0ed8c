// Elements. Data reaches the document as text nodes and attributes only: there is no way in for markup.

/**
 * An element. `attributes`: strings and numbers are attributes, booleans set or leave them out; `on` holds
 * listeners, `data` the data-* attributes, `vars` CSS custom properties. Children: nodes, texts, lists of them;
 * null and false are left out.
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

/** The children that are there, in one flat list; numbers become text. */
export function kept(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/** Put these in place of all that is in `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren(...kept(children));
  return parent;
}

/** Say it to a screen reader, without moving anything. */
export function say(text) {
  const place = document.getElementById("spoken");
  if (place.textContent !== text) place.textContent = text;
}

let made = 0;

/** An id that no other element has. */
export function newId(prefix) {
  made += 1;
  return `${prefix}-${made}`;
}
