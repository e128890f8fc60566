// Names as long as Kafka allows: two lines, and the whole name on demand.

import { element } from "./format.js";

// The names that are shown whole: pages are made anew with each look at the cluster.
const whole = new Set();

// An element with a name, and a button for all of it, which is hidden where the name has room.
export function longName(tag, name, ...content) {
  const host = element(tag, { class: "long", title: name }, ...content);
  const button = element("button", { type: "button", class: "whole-name", hidden: true, onclick: () => {
    if (!whole.delete(name)) whole.add(name);
    show();
  } });
  const show = () => {
    host.classList.toggle("whole", whole.has(name));
    button.textContent = whole.has(name) ? "Shorten the name" : "Whole name";
    button.setAttribute("aria-expanded", whole.has(name));
    // A line has pixels above and below its letters.
    button.hidden = !whole.has(name) && host.scrollHeight <= host.clientHeight + 2;
  };
  new ResizeObserver(show).observe(host);
  return [host, button];
}

// A name in a table, whose whole form is elsewhere.
export const shortName = (name) => element("span", { class: "short", title: name }, name);
