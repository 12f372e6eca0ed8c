// Plotly, fetched when the first curve is wanted: it is larger than all the rest of the page.

let loading = null;

/** The library. Raises an Error where the script cannot be had; a later call tries again. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("../plotly.min.js", import.meta.url).href;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      loading = null;
      script.remove();
      reject(new Error("The drawing library (static/plotly.min.js) did not load. Load the page again."));
    };
    document.head.append(script);
  });
  return loading;
}
