// Groups: how far behind they are, and which tier their next records come from.

import { age, bytes, count, element, figure, plural, rate, table } from "./format.js";

const ROWS_MAX = 500;

// The record that is next lies between the newest of its segment and the newest of the one before.
function between({ age_s: least, age_s_max: most }) {
  if (least === 0 && most === 0) return "none";
  if (least === null) return most === null ? "unknown" : `at most ${age(most)}`;
  if (most === null) return `at least ${age(least)}`;
  return age(least) === age(most) ? age(most) : `${age(least)} to ${age(most)}`;
}

const remoteSpeed = ({ remote_bytes_per_s: size }) => (size ? `${bytes(Math.round(size))}/s` : "");
const offsetSpeed = ({ offsets_per_s: offsets }) => (offsets === null ? "" : `${rate(offsets)} offsets/s`);
const speed = (row) => [offsetSpeed(row), remoteSpeed(row) && `${remoteSpeed(row)} from remote`].filter(Boolean).join(" · ");

export function groupsPage() {
  const page = { title: "Groups", isShown: false, load: (fetchJson) => fetchJson("api/groups") };
  page.show = (main, { groups }) => {
    page.isShown = true;
    const found = [...groups].sort((one, other) => other.remote_lag - one.remote_lag || other.lag - one.lag);
    const columns = [
      ["group", (row) => element("a", { href: `#/groups/${encodeURIComponent(row.group)}` }, row.group)],
      ["state", (row) => element("span", { class: row.group_error ? "bad" : null }, row.group_error || row.state), "left"],
      ["type", (row) => row.type, "left"],
      ["partitions", (row) => count(row.partitions)],
      ["lag, offsets", (row) => count(row.lag)],
      ["of these remote", (row) => count(row.remote_lag)],
      ["age", between],
      ["reads", speed],
      ["reads from", readsFrom, "left wraps"],
    ];
    const rows = found.slice(0, ROWS_MAX);
    main.replaceChildren(element("h1", {}, "Groups"), element("section", { class: "card" },
      rows.length ? table("Groups", columns, rows) : element("p", { class: "quiet" }, "No group."),
      found.length > ROWS_MAX ? element("p", { class: "quiet" }, `${ROWS_MAX} of ${count(found.length)} groups, the farthest behind.`) : null,
      ));
  };
  return page;
}

function readsFrom({ reads_from: tiers }) {
  return Object.entries(tiers).map(([tier, partitions]) => `${tier} (${count(partitions)})`).join(", ");
}

export function groupPage(name) {
  const page = { title: name, isShown: false, load: (fetchJson) => fetchJson(`api/groups/${encodeURIComponent(name)}`) };
  page.show = (main, group) => {
    page.isShown = true;
    const number = (key) => (row) => (row[key] === null ? "" : count(row[key]));
    main.replaceChildren(element("h1", {}, name),
      element("dl", { class: "figures wide" },
        figure("State", group.group_error || group.state || "unknown", group.type, Boolean(group.group_error)),
        figure("Lag", count(group.lag), `offsets of ${plural(group.partitions, "partition")}`),
        figure("Of these remote", count(group.remote_lag), "below the local log start"),
        figure("Age", between(group), "of the record that is next"),
        group.offsets_per_s === null ? figure("Reads", "unknown", "until the next reading")
          : figure("Reads", rate(group.offsets_per_s), "offsets a second, by what it commits"),
        group.remote_topics.length ? figure("From remote", remoteSpeed(group) || "unknown", "by the mean size of an offset there") : null),
      remoteReads(group.remote_topics),
      element("section", { class: "card" }, table("Partitions", [
        ["topic", (row) => element("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic)],
        ["partition", (row) => String(row.partition)],
        ["committed", number("committed_offset")],
        ["lag", number("lag")],
        ["of these remote", number("remote_lag")],
        ["age", between],
        ["reads", speed],
          ["reads from", (row) => row.reads_from, "left"],
      ], group.by_partition)));
  };
  return page;
}

// What the brokers' metrics say of the topics that a group reads from the remote tier.
function remoteReads(topics) {
  if (!topics.length) return "";
  const known = topics.every(({ traffic }) => traffic !== null);
  return element("section", { class: "card" }, element("h2", {}, "Reads of the remote tier"), known
    ? table("Reads of the remote tier", [
      ["topic", (row) => element("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic)],
      ["GETs at least", ({ traffic }) => `${rate(traffic.reads)}/s`],
      ["bytes", ({ traffic }) => `${bytes(Math.round(traffic.read_bytes))}/s`],
    ], topics)
    : element("p", {}, `${topics.map(({ topic }) => topic).join(", ")}: GETs and throughput are in the brokers' metrics. Name them with `, element("code", {}, "--metrics"), ", and look twice."),
    element("p", { class: "quiet" }, "Of all readers of the topic together: brokers do not count by group."));
}
