// Dark or light: as the system has it, until someone chooses.

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

/** "dark" or "light", as it is now. */
export function theme() {
  const chosen = stored();
  if (chosen === "dark" || chosen === "light") return chosen;
  return dark.matches ? "dark" : "light";
}

/** The other one from now on. */
export function toggle() {
  const next = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    document.documentElement.dataset.theme = next;
  }
  show();
}

/** Call it whenever the theme changes; returns what ends that. */
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
