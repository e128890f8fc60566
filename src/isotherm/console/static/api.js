// The API's own description as a page.

import { element } from "./format.js";

const host = document.getElementById("paths");
const document_ = await (await fetch("openapi.json")).json();
for (const [path, { get }] of Object.entries(document_.paths)) {
  host.append(element("section", { class: "card" },
    element("h2", {}, element("code", {}, `GET ${path}`)),
    element("p", {}, get.summary),
    element("ul", {}, get.parameters.map(({ name, in: place, description, schema }) => {
      const bounds = schema.maximum === undefined ? "" : `, ${schema.minimum} to ${schema.maximum}`;
      return element("li", {}, element("code", {}, name), ` (${place}, ${schema.type}${bounds}) ${description || ""}`);
    }))));
}
