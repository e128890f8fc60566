// The API's own description as a page.

import { element } from "./format.js";

// JavaScript has no exact form of the largest offset.
function valuesOf({ enum: words, type, minimum, maximum }) {
  if (words) return words.join(" or ");
  if (maximum === undefined) return type;
  return maximum > Number.MAX_SAFE_INTEGER ? `${type}, ${minimum} or more` : `${type}, ${minimum} to ${maximum}`;
}

const host = document.getElementById("paths");
const document_ = await (await fetch("openapi.json")).json();
for (const [path, { get }] of Object.entries(document_.paths)) {
  host.append(element("section", { class: "card" },
    element("h2", {}, element("code", {}, `GET ${path}`)),
    element("p", {}, get.summary),
    get.parameters.length ? element("ul", {}, get.parameters.map(({ name, in: place, description, schema }) => {
      return element("li", {}, element("code", {}, name), ` (${place}, ${valuesOf(schema)}) ${description || ""}`);
    })) : null));
}
