// The theme, dark or light: the system's, until the user chooses one.

const KEY = "kubealign-theme";
const changed = new EventTarget();
const dark = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be switched off: the system's choice holds then
  }
}

function show() {
  document.documentElement.dataset.theme = theme();
  changed.dispatchEvent(new Event("change"));
}

/** The current theme: "dark" or "light". */
export function theme() {
  const chosen = stored();
  if (chosen === "dark" || chosen === "light") return chosen;
  return dark.matches ? "dark" : "light";
}

/** Switch to the other theme. */
export function toggle() {
  const next = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    document.documentElement.dataset.theme = next;
  }
  show();
}

/** Call the listener whenever the theme changes; returns a function that removes it. */
export function onTheme(listener) {
  changed.addEventListener("change", listener);
  return () => changed.removeEventListener("change", listener);
}

/** A colour of the style sheet, by the name of its custom property. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

dark.addEventListener("change", show);
addEventListener("storage", (event) => event.key === KEY && show());
show();
