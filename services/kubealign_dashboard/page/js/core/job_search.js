// A field that finds a job by part of its name.

import { field } from "./components.js";
import { get } from "./api.js";
import { fill, h, newId } from "./dom.js";

const TYPING_MS = 250;
const OFFERED = 20;

/**
 * {element, show(text)}. NAMESPACE/NAME is used verbatim; a name alone is a job of `namespace`. `choose` receives
 * NAMESPACE/NAME or an empty text; `leaveOut`: a job that is not offered.
 */
export function jobSearch(label, { namespace, choose, placeholder, leaveOut = "" }) {
  const offers = h("datalist", { id: newId("offers") });
  let timer;
  const input = h("input", { type: "search", list: offers.id, placeholder, autocomplete: "off",
    on: {
      input: (event) => {
        clearTimeout(timer);
        timer = setTimeout(() => offer(event.target.value.trim()), TYPING_MS);
      },
      change: (event) => take(event.target.value.trim()),
    } });

  async function offer(words) {
    const { items } = await get("alignmentjobs", { search: words.split("/").pop(), limit: OFFERED }).catch(
      () => get(`namespaces/${encodeURIComponent(namespace)}/alignmentjobs`, { search: words, limit: OFFERED }))
      .catch(() => ({ items: [] }));
    const names = items.map(({ metadata }) => `${metadata.namespace}/${metadata.name}`);
    fill(offers, names.filter((name) => name !== leaveOut).map((name) => h("option", { value: name })));
    if (names.includes(words)) take(words);
  }

  function take(text) {
    choose(text === "" || text.includes("/") ? text : `${namespace}/${text}`);
  }

  const element = h("span", { class: "jobsearch" }, field(label, input), offers);
  return { element, show: (text) => { if (document.activeElement !== input) input.value = text; } };
}
