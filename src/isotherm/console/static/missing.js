// What is shown where nothing is: the reason, and ways back.

import { element } from "./format.js";

const WAYS = [["#/", "Overview"], ["#/topics", "Topics"], ["#/groups", "Groups"]];

export function nothingHere(title, reason, lookAgain = null) {
  return [element("h1", {}, title), element("section", { class: "card", id: "missing" }, element("p", {}, reason),
    element("p", {}, "Go to ", WAYS.map(([href, name], place) => [place ? ", " : "", element("a", { href }, name)]).flat(), "."),
    lookAgain ? element("button", { type: "button", onclick: lookAgain }, "Look again") : null)];
}

export function missingPage(hash) {
  const page = { title: "No such page", isShown: false, load: async () => ({}) };
  page.show = (main) => {
    if (page.isShown) return;
    page.isShown = true;
    main.replaceChildren(...nothingHere("No such page", `The console has no page ${hash}.`));
  };
  return page;
}
