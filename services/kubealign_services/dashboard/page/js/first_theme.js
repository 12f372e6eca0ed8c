// Before anything is drawn: modules come later, and a dark page would begin with a flash of light.
// js/themes.js keeps it up to date from then on.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("kubealign-theme");
  } catch (error) {
    // Storage is switched off: as the system has it.
  }
  var dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen === "dark" || chosen === "light" ? chosen : dark ? "dark" : "light";
})();
