// Icons shown next to a word and hidden from screen readers.

const SVG = "http://www.w3.org/2000/svg";

const PATHS = {
  Pending: ["circle", { cx: 8, cy: 8, r: 5.5, "stroke-dasharray": "2.2 2.2" }],
  Starting: ["path", { d: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5" }],
  Running: ["path", { d: "M5 3.2v9.6L13 8z", fill: "currentColor", "stroke-linejoin": "round" }],
  Suspending: ["path", { d: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5M6.5 6v4M9.5 6v4" }],
  Suspended: ["path", { d: "M5.5 3v10M10.5 3v10", "stroke-width": 2.6 }],
  Succeeded: ["path", { d: "M2.8 8.6l3.4 3.6 7-8.2", "stroke-width": 2.2 }],
  Failed: ["path", { d: "M3.5 3.5l9 9M12.5 3.5l-9 9", "stroke-width": 2.2 }],
  Critical: ["path", { d: "M8 1.8L15 14H1zM8 6v4M8 11.6v.8" }],
  Warning: ["path", { d: "M8 1.8L15 14H1zM8 6v4M8 11.6v.8" }],
  Info: ["path", { d: "M8 1.8a6.2 6.2 0 1 0 .01 0M8 7.2v4M8 4.6v.8" }],
  moon: ["path", { d: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z" }],
  sun: ["path", { d: "M8 5a3 3 0 1 0 .01 0M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8L13 13M3 13l1.2-1.2M11.8 4.2L13 3" }],
};

/** The icon of this name at text height; an empty circle for an unknown name. */
export function icon(name) {
  const [tag, attributes] = PATHS[name] ?? ["circle", { cx: 8, cy: 8, r: 5.5 }];
  const svg = document.createElementNS(SVG, "svg");
  const common = { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true", fill: "none", stroke: "currentColor" };
  for (const [key, value] of Object.entries({ ...common, "stroke-width": 1.6, "stroke-linecap": "round" })) {
    svg.setAttribute(key, value);
  }
  const shape = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, String(value));
  svg.append(shape);
  return svg;
}
