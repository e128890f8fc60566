// The members of a group, and what each of them reads.

import { count, element } from "./format.js";
import { table } from "./table.js";

// Ranges of partitions: 0-3, 7.
export function ranges(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  const runs = [];
  for (const number of sorted) {
    const run = runs.at(-1);
    if (run && number === run[1] + 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`)).join(", ");
}

const partitionsOf = (byTopic) => Object.values(byTopic).reduce((sum, each) => sum + each.length, 0);
const shown = (byTopic) => Object.entries(byTopic).map(([topic, partitions]) => `${topic} ${ranges(partitions)}`).join("; ");

function reads({ assigned, awaited }) {
  if (assigned === null) return element("span", { class: "quiet" }, "its own form, which only its program reads");
  return element("span", {}, shown(assigned) || "nothing", partitionsOf(awaited) ? element("span", { class: "quiet" }, ` · still to get ${shown(awaited)}`) : "");
}

export function membersCard({ members, members_total: total, members_error: error, assignor, state, type }) {
  return [element("h2", {}, "Members"),
    error ? element("p", { class: "bad" }, `The members cannot be read${members ? " now; these are those of before" : ""}. ${error}`) : null,
    members === null ? null : list(members, total, assignor, state, type)].filter(Boolean);
}

function list(members, total, assignor, state, type) {
  const stay = type.toLowerCase() === "share" ? "The start offsets stay." : "The offsets stay until they expire.";
  if (!total) return element("p", { class: "quiet" }, `No member${state === "Dead" ? ": the group is dead" : " now"}. ${stay}`);
  return element("div", {}, assignor ? element("p", { class: "quiet" }, `Assigned by ${assignor}.`) : null,
    table("Members", [
      { name: "client", cell: (row) => row.client_id || "without an id", value: "client_id", kind: "left name" },
      { name: "host", cell: (row) => row.host, value: "host", kind: "left wraps", isKey: true },
      { name: "partitions", cell: (row) => (row.assigned ? count(partitionsOf(row.assigned)) : ""), value: (row) => (row.assigned ? partitionsOf(row.assigned) : null), isKey: true },
      { name: "reads", cell: reads, kind: "left wraps" },
      { name: "static id", cell: (row) => row.instance_id ?? "", value: "instance_id", kind: "left wraps" },
      { name: "member", cell: (row) => row.member_id, value: "member_id", kind: "left wraps" },
    ], members, { noun: "members" }),
    total > members.length ? element("p", { class: "quiet" }, `The first ${count(members.length)} of ${count(total)}.`) : null);
}

// Which clients read a partition: { "topic partition": [client] }.
export function readersByPartition(members) {
  const found = new Map();
  for (const { client_id: client, assigned } of members ?? []) {
    for (const [topic, partitions] of Object.entries(assigned ?? {})) {
      for (const partition of partitions) {
        const place = `${topic} ${partition}`;
        if (found.has(place)) found.get(place).push(client);
        else found.set(place, [client]);
      }
    }
  }
  return found;
}
