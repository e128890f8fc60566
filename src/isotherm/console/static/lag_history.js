// A line of a group's lag over the looks of a page. Nothing keeps the past but the page that is open.

import { count, element } from "./format.js";

// At one look every five seconds this is an hour.
const LOOKS_MAX = 720;
const [WIDTH, HEIGHT] = [600, 80];
const SVG = "http://www.w3.org/2000/svg";

export class LagHistory {
  constructor() {
    this.looks = [];
  }

  note(atMs, lag) {
    if (this.looks.at(-1)?.atMs === atMs) return;
    this.looks.push({ atMs, lag });
    if (this.looks.length > LOOKS_MAX) this.looks.shift();
  }

  get element() {
    if (this.looks.length < 2) return element("p", { class: "quiet" }, "The line begins with the next look. It lasts as long as this page is open.");
    const lags = this.looks.map(({ lag }) => lag);
    const [first, last] = [this.looks[0], this.looks.at(-1)];
    const clock = (ms) => new Date(ms).toLocaleTimeString();
    const words = `From ${clock(first.atMs)} to ${clock(last.atMs)}: ${count(first.lag)} to ${count(last.lag)} offsets, `
      + `at least ${count(Math.min(...lags))}, at most ${count(Math.max(...lags))}.`;
    return element("div", { class: "history" }, line(this.looks, words), element("p", { class: "quiet" }, words));
  }
}

// The bottom is a lag of 0, or the least one if it is negative.
function line(looks, words) {
  const made = (name, attributes) => {
    const each = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) each.setAttribute(key, value);
    return each;
  };
  const top = Math.max(1, ...looks.map(({ lag }) => lag));
  const bottom = Math.min(0, ...looks.map(({ lag }) => lag));
  const span = looks.at(-1).atMs - looks[0].atMs;
  const points = looks.map(({ atMs, lag }) =>
    `${((WIDTH * (atMs - looks[0].atMs)) / span).toFixed(1)},${(HEIGHT - 2 - ((HEIGHT - 4) * (lag - bottom)) / (top - bottom)).toFixed(1)}`);
  const drawing = made("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words });
  drawing.append(made("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
  return drawing;
}
