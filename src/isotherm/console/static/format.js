// Numbers as people read them, and elements of the page.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const PLACES_MAX = 10; // of a problem
const SPANS = [["d", 86400], ["h", 3600], ["min", 60]];

export function bytes(size) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : size} ${UNITS[unit]}`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// A size that may be unknown.
export const sizeText = (size) => (size === null ? "unknown" : bytes(size));

export const count = (number) => number.toLocaleString("en-US");

export function age(seconds) {
  if (seconds === null) return "unknown";
  const span = SPANS.find(([, size]) => seconds >= size);
  return span ? `${(seconds / span[1]).toFixed(1)} ${span[0]}` : `${Math.round(seconds)} s`;
}

// A number of things in a second.
export const rate = (number) => (number >= 100 ? count(Math.round(number)) : String(Number(number.toPrecision(2))));

export function dollars(amount) {
  if (amount > 0 && amount < 0.01) return "< $0.01";
  return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

// A record's time is whatever its producer has sent: nanoseconds are beyond the last date, and -1 is none.
const LAST_MS = 8.64e15;

export function time(ms) {
  if (ms === -1) return "none";
  return Math.abs(ms) > LAST_MS ? `${ms} ms` : new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(2).filter((child) => child !== null));
  return made;
}

// What somebody has to act on; nothing if nothing is wrong. What has the same cause and remedy is one problem.
export function problemList(problems) {
  if (!problems.length) return [];
  const groups = new Map();
  for (const each of problems) {
    const same = `${each.cause}\n${each.text}`;
    groups.set(same, [...(groups.get(same) ?? []), each]);
  }
  return [element("section", { class: "card problems", "aria-label": "Problems" },
    element("ul", {}, [...groups.values()].map((some) => element("li", {}, problemWords(some)))))];
}

function problemWords(some) {
  const [{ cause, text }] = some;
  const heading = element("strong", { class: "bad" }, cause);
  const places = some.filter(({ topic }) => topic !== null);
  if (places.length < 2) return [heading, ...places.flatMap((each) => [" in ", topicOf(each)]), ": ", some.map(damage), text];
  return [heading, ` in ${plural(places.length, "topic")}: `, text, element("ul", {}, places.slice(0, PLACES_MAX).map((each) =>
    element("li", {}, topicOf(each), ": ", damage(each) || cause))),
  places.length > PLACES_MAX ? element("p", { class: "quiet" }, `And in ${count(places.length - PLACES_MAX)} more.`) : ""];
}

const topicOf = ({ topic }) => element("a", { href: `#/topics/${encodeURIComponent(topic)}` }, topic);

const damage = ({ bytes: size, failures, partitions }) =>
  (size === null ? "" : `${bytes(size)} of closed segments are not copied${partitions.length ? `, most in partition ${partitions.join(", ")}` : ""}. `)
  + (failures ? `${plural(failures, "copy", "copies")} failed in the last minutes. ` : "");

export const figure = (name, value, note = "", isBad = false) =>
  element("div", {}, element("dt", {}, name),
    element("dd", { class: isBad ? "bad" : null }, value, note ? element("small", {}, note) : null));
