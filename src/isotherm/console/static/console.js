// Which page is shown, and when it is read again.

import { answersPage } from "./answers.js";
import { groupPage, groupsPage } from "./groups.js";
import { overviewPage } from "./overview.js";
import { jobsPage, reportPage } from "./jobs.js";
import { recordsPage } from "./records.js";
import { fetchJson } from "./requests.js";
import { topicPage } from "./topic.js";

const INTERVAL_MS = 5000;
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
  const [, kind, text, query] = /^#\/(topics|groups|records|answers|jobs)(?:\/([^?]+))?(?:\?(.*))?$/.exec(hash) || [];
  const name = text && decoded(text);
  if (kind === "records" && name) return recordsPage(name, new URLSearchParams(query));
  if (kind === "topics" && name) return topicPage(name, new URLSearchParams(query));
  if (kind === "jobs") return name ? reportPage(name) : jobsPage();
  if (kind === "answers") return answersPage();
  if (kind === "groups") return name ? groupPage(name) : groupsPage();
  return overviewPage();
}

function tell(message) {
  if (problem.textContent !== message) problem.textContent = message;
  problem.hidden = !message;
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn;
  try {
    const data = await page.load(fetchJson);
    if (mine !== turn) return;
    page.show(main, data);
    asOf.textContent = data.read_at_ms ? `as of ${new Date(data.read_at_ms).toLocaleTimeString()}` : "";
    tell(data.error ? `The cluster does not answer; these numbers are old. ${data.error}` : "");
  } catch (error) {
    if (mine !== turn) return;
    tell(`Nothing can be shown: ${error.message}`);
    if (!page.isShown) main.replaceChildren();
  }
  if (document.visibilityState === "visible") timer = setTimeout(refresh, INTERVAL_MS);
}

function open() {
  page?.close?.();
  page = pageOf(location.hash);
  main.replaceChildren();
  document.title = `${page.title} · Isotherm console`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === (location.hash || "#/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  return refresh();
}

addEventListener("hashchange", () => open().then(() => main.focus()));
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the page
  main.focus();
});
open();
