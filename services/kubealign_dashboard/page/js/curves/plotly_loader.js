// Loads Plotly on first use: it is larger than the rest of the page.

let loading = null;

/** Return the library. Throws an Error when the script does not load; a later call tries again. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("../../plotly.min.js", import.meta.url).href;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      loading = null;
      script.remove();
      reject(new Error("The plotting library (static/plotly.min.js) did not load. Reload the page."));
    };
    document.head.append(script);
  });
  return loading;
}
