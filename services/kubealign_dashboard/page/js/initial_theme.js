// Sets the theme before the first paint: modules load later, and a dark page would flash light.
// js/core/themes.js updates it afterwards.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("kubealign-theme");
  } catch (error) {
    // Storage is disabled: use the system's theme.
  }
  var dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen === "dark" || chosen === "light" ? chosen : dark ? "dark" : "light";
})();
