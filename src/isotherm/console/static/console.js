// Which page is shown, and when it is read again.

import { answersPage } from "./answers.js";
import { brokerPage, brokersPage } from "./brokers.js";
import { groupPage, groupsPage } from "./groups.js";
import { jobsPage, reportPage } from "./jobs.js";
import { missingPage, nothingHere } from "./missing.js";
import { overviewPage } from "./overview.js";
import { recordsPage } from "./records.js";
import { consoleFacts, fetchJson } from "./requests.js";
import { tablePage, tablesPage } from "./tables.js";
import { topicPage } from "./topic.js";
import { recordTopicsPage, topicsPage } from "./topics.js";

const INTERVAL_MS = 5000;
const GONE = 404;
const main = document.getElementById("main");
const problem = document.getElementById("problem");
const asOf = document.getElementById("as-of");

let page = null;
let timer = 0;
let turn = 0;

// As it is, if an address that was typed or cut off is not encoded.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function pageOf(hash) {
  if (/^(#\/?)?$/.test(hash)) return overviewPage();
  const [, kind, text, query] = /^#\/([a-z]+)(?:\/([^?]+))?\/?(?:\?(.*))?$/.exec(hash) || [];
  const name = text && decoded(text);
  const parameters = new URLSearchParams(query);
  if (kind === "topics") return name ? topicPage(name, parameters) : topicsPage();
  if (kind === "records") return name ? recordsPage(name, parameters) : recordTopicsPage();
  if (kind === "groups") return name ? groupPage(name) : groupsPage();
  if (kind === "jobs") return name ? reportPage(name) : jobsPage();
  if (kind === "brokers") return name ? brokerPage(name) : brokersPage();
  if (kind === "tables") return name ? tablePage(name) : tablesPage();
  if (kind === "answers" && !name) return answersPage();
  return missingPage(hash);
}

function tell(message) {
  if (problem.textContent !== message) problem.textContent = message;
  problem.hidden = !message;
}

// A page is made anew with each look. What had the keyboard's focus has it again.
function show(data, facts) {
  const focus = main.contains(document.activeElement) ? markOf(document.activeElement) : null;
  page.show(main, data, facts);
  if (focus === null || main.contains(document.activeElement)) return;
  [...main.querySelectorAll(focus.tag)].find((each) => markOf(each).text === focus.text)?.focus({ preventScroll: true });
}

function markOf(each) {
  const words = ["href", "name", "aria-label"].map((name) => each.getAttribute(name) ?? "");
  const table = each.closest("table")?.getAttribute("aria-label") ?? "";
  return { tag: each.localName, text: [...words, table, each.textContent.slice(0, 100)].join("\n") };
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn;
  try {
    const [data, facts] = await Promise.all([page.load(fetchJson), consoleFacts()]);
    if (mine !== turn) return;
    show(data, facts);
    asOf.textContent = data.read_at_ms ? `as of ${new Date(data.read_at_ms).toLocaleTimeString()}` : "";
    tell(data.error ? `The cluster does not answer; these numbers are old. ${data.error}` : "");
  } catch (error) {
    if (mine !== turn) return;
    tell(`Nothing can be shown: ${error.message}`);
    // It is not asked for again and again: it will hardly appear.
    page.isGone = error.status === GONE;
    if (page.isGone) main.replaceChildren(...nothingHere("Nothing here", "It may have been deleted, or is in another cluster.", open));
    else if (!page.isShown) main.replaceChildren();
  }
  if (document.visibilityState === "visible" && !page.isGone) timer = setTimeout(refresh, INTERVAL_MS);
}

function open() {
  page?.close?.();
  page = pageOf(location.hash);
  main.replaceChildren();
  document.title = `${page.title} · Isotherm console`;
  const section = `#/${/^#\/([a-z]*)/.exec(location.hash)?.[1] ?? ""}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  return refresh();
}

addEventListener("hashchange", () => open().then(() => main.focus()));
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && !page.isGone && refresh());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the page
  main.focus();
});
open();
