// Groups: how far behind they are, and which tier their next records come from.

import { age, count, element, figure, plural, table } from "/static/format.js";

const ROWS_MAX = 500;

const atLeast = (seconds) => (seconds === null ? "unknown" : seconds ? `at least ${age(seconds)}` : "none");

export function groupsPage() {
  const page = { title: "Groups", isShown: false, load: (fetchJson) => fetchJson("/api/groups") };
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
      ["age", (row) => atLeast(row.age_s)],
      ["reads from", readsFrom, "left"],
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
  const page = { title: name, isShown: false, load: (fetchJson) => fetchJson(`/api/groups/${encodeURIComponent(name)}`) };
  page.show = (main, group) => {
    page.isShown = true;
    const number = (key) => (row) => (row[key] === null ? "" : count(row[key]));
    main.replaceChildren(element("h1", {}, name),
      element("dl", { class: "figures wide" },
        figure("State", group.group_error || group.state || "unknown", group.type, Boolean(group.group_error)),
        figure("Lag", count(group.lag), `offsets of ${plural(group.partitions, "partition")}`),
        figure("Of these remote", count(group.remote_lag), "below the local log start"),
        figure("Age", atLeast(group.age_s), "of the record that is next")),
      element("section", { class: "card" }, table("Partitions", [
        ["topic", (row) => element("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic)],
        ["partition", (row) => String(row.partition)],
        ["committed", number("committed_offset")],
        ["lag", number("lag")],
        ["of these remote", number("remote_lag")],
        ["age", (row) => atLeast(row.age_s)],
        ["reads from", (row) => row.reads_from, "left"],
      ], group.by_partition)));
  };
  return page;
}
