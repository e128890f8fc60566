// Groups: how far behind they are, and which tier their next records come from.

import { readOnlyNote, quoted } from "./commands.js";
import { age, bytes, count, element, figure, plural, rate } from "./format.js";
import { LagHistory } from "./lag_history.js";
import { membersCard, readersByPartition } from "./members.js";
import { longName } from "./names.js";
import { table } from "./table.js";
import { topicLink } from "./topics.js";

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

// The columns of one place that is read, or of all places of a group.
const AGE = { name: "age", cell: between, value: (row) => row.age_s ?? row.age_s_max };
const READS = { name: "reads", cell: speed, value: "offsets_per_s" };
const STATE = { name: "state", value: "state", kind: "left wraps",
  cell: (row) => element("span", { class: row.group_error ? "bad" : null }, row.group_error || row.state) };
const TYPE = { name: "type", cell: (row) => row.type, value: "type", kind: "left" };
const LAGS = [
  { name: "lag, offsets", cell: (row) => count(row.lag), value: "lag", isKey: true },
  { name: "of these remote", cell: (row) => count(row.remote_lag), value: "remote_lag", isKey: true },
];
const isShare = ({ type }) => type.toLowerCase() === "share";
export const groupLink = (name) => element("a", { href: `#/groups/${encodeURIComponent(name)}`, title: name }, name);

export function groupsPage() {
  const page = { title: "Groups", isShown: false, load: (fetchJson) => fetchJson("api/groups") };
  const columns = [
    { name: "group", cell: (row) => groupLink(row.group), value: "group", kind: "left name" },
    STATE, TYPE,
    { name: "partitions", cell: (row) => count(row.partitions), value: "partitions" },
    ...LAGS, { ...AGE, isKey: true }, READS,
    { name: "reads from", cell: readsFrom, kind: "left wraps" },
  ];
  let wanted = "";
  let groups = [];
  const list = element("div", { id: "groups" });
  const fill = () => {
    const rows = groups.filter(({ group }) => group.toLowerCase().includes(wanted))
      .sort((one, other) => other.remote_lag - one.remote_lag || other.lag - one.lag);
    list.replaceChildren(rows.length ? table("Groups", columns, rows, { noun: "groups" }) : element("p", { class: "quiet" }, "No group."));
  };
  page.show = (main, data) => {
    groups = data.groups;
    if (!page.isShown) {
      page.isShown = true;
      main.replaceChildren(element("h1", {}, "Groups"), element("section", { class: "card" }, element("div", { class: "tools" },
        element("label", {}, "Find ", element("input", { type: "search", name: "find", oninput: (event) => {
          wanted = event.target.value.toLowerCase();
          fill();
        } }))), list));
    }
    fill();
  };
  return page;
}

function readsFrom({ reads_from: tiers }) {
  return Object.entries(tiers).map(([tier, partitions]) => `${tier} (${count(partitions)})`).join(", ");
}

// The groups that read one topic. Their numbers are those of this topic alone.
export function readersCard({ groups, failure }) {
  const heading = element("h2", {}, "Groups that read it");
  if (!groups) return [heading, element("p", { class: "bad" }, `The groups cannot be read. ${failure}`)];
  if (!groups.length) return [heading, element("p", { class: "quiet" }, "No group has an offset of this topic.")];
  return [heading, table("Groups of the topic", [
    { name: "group", cell: (row) => groupLink(row.group), value: "group", kind: "left name" },
    STATE, TYPE,
    { name: "partitions", cell: (row) => count(row.partitions), value: "partitions" },
    ...LAGS, { ...AGE, isKey: true }, READS,
    { name: "reads from", cell: readsFrom, kind: "left wraps" },
  ], [...groups].sort((one, other) => other.lag - one.lag), { noun: "groups" })];
}

export function groupPage(name) {
  const page = { title: name, isShown: false, load: (fetchJson) => fetchJson(`api/groups/${encodeURIComponent(name)}`) };
  const history = new LagHistory();
  page.show = (main, group, { client_arguments: client }) => {
    page.isShown = true;
    history.note(group.read_at_ms, group.lag);
    main.replaceChildren(...longName("h1", name, name),
      element("dl", { class: "figures wide" },
        figure("State", group.group_error || group.state || "unknown", group.type, Boolean(group.group_error)),
        figure("Members", group.members_total === null ? "unknown" : count(group.members_total), group.assignor ? `assigned by ${group.assignor}` : ""),
        figure("Lag", count(group.lag), `${isShare(group) ? "records not yet done" : "offsets"} of ${plural(group.partitions, "partition")}`),
        figure("Of these remote", count(group.remote_lag), "below the local log start"),
        figure("Age", between(group), "of the record that is next"),
        group.offsets_per_s === null ? figure("Reads", "unknown", "until the next reading")
          : figure("Reads", rate(group.offsets_per_s), `offsets a second, by ${isShare(group) ? "its start offsets" : "what it commits"}`),
        group.remote_topics.length ? figure("From remote", remoteSpeed(group) || "unknown", "by the mean size of an offset there") : null),
      element("section", { class: "card", id: "history" }, element("h2", {}, "Lag while this page is open"), history.element),
      element("section", { class: "card", id: "members" }, membersCard(group)),
      remoteReads(group.remote_topics),
      element("section", { class: "card", id: "lag" }, element("h2", {}, "Lag"),
        group.by_topic.length > 1 ? topicLags(group.by_topic) : null, partitionLags(group)),
      deliveriesCard(group.deliveries),
      readOnlyNote("Another offset", `isotherm groups reset-offsets ${client} ${quoted(name)} --topic ${quoted(group.by_topic[0]?.topic ?? "TOPIC")} --to-earliest`));
  };
  return page;
}

// All members of a share group may read the same partition.
const READERS_SHOWN = 3;
const readerNames = (clients) => (clients.length > READERS_SHOWN ? `${clients.slice(0, READERS_SHOWN).join(", ")} and ${count(clients.length - READERS_SHOWN)} more` : clients.join(", "));
const known = (key) => (row) => (row[key] === null ? "" : count(row[key]));

function topicLags(topics) {
  return table("Topics of the group", [
    { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
    { name: "partitions", cell: known("partitions"), value: "partitions" },
    { name: "lag", cell: known("lag"), value: "lag", isKey: true },
    { name: "of these remote", cell: known("remote_lag"), value: "remote_lag", isKey: true },
  ], [...topics].sort((one, other) => other.lag - one.lag), { noun: "topics" });
}

function partitionLags(group) {
  const readers = readersByPartition(group.members);
  const reader = (row) => readerNames(readers.get(`${row.topic} ${row.partition}`) ?? []);
  const offsets = isShare(group) ? [
    { name: "start offset", cell: known("start_offset"), value: "start_offset" },
    { name: "done after it, at most", cell: known("delivered_max"), value: "delivered_max" },
  ] : [{ name: "committed", cell: known("committed_offset"), value: "committed_offset" }];
  return table("Partitions", [
    { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
    { name: "partition", cell: (row) => String(row.partition), value: "partition", isKey: true },
    ...offsets,
    { name: "lag", cell: known("lag"), value: "lag", isKey: true },
    { name: "of these remote", cell: known("remote_lag"), value: "remote_lag", isKey: true },
    AGE, READS,
    { name: "reads from", cell: (row) => row.reads_from, value: "reads_from", kind: "left wraps" },
    { name: "read by", cell: reader, value: reader, kind: "left wraps" },
  ], group.by_partition);
}

// What became of a share group's records from the start offsets on.
function deliveriesCard(deliveries) {
  if (!deliveries) return "";
  const reasons = [...new Set(deliveries.map(({ error }) => error).filter(Boolean))];
  return element("section", { class: "card", id: "deliveries" }, element("h2", {}, "Deliveries from the start offsets on"),
    table("Deliveries", [
      { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
      { name: "partition", cell: (row) => String(row.partition), value: "partition", isKey: true },
      { name: "in flight", cell: known("in_flight"), value: "in_flight", isKey: true },
      { name: "acknowledged", cell: known("acknowledged"), value: "acknowledged" },
      { name: "archived", cell: known("archived"), value: "archived", isKey: true },
      { name: "released", cell: known("released"), value: "released" },
      { name: "their most deliveries", cell: known("delivery_count_max"), value: "delivery_count_max" },
    ], deliveries, { noun: "partitions" }),
    ...reasons.map((reason) => element("p", { class: "bad" }, `What became of the records is unknown. ${reason}`)),
    deliveries.every((row) => row.in_flight === null)
      ? element("p", { class: "quiet" }, "What is in flight is in the metrics of the leaders. Name them with ", element("code", {}, "--metrics"), ".") : null);
}

// What the brokers' metrics say of the topics that a group reads from the remote tier.
function remoteReads(topics) {
  if (!topics.length) return "";
  const known = topics.every(({ traffic }) => traffic !== null);
  return element("section", { class: "card" }, element("h2", {}, "Reads of the remote tier"), known
    ? table("Reads of the remote tier", [
      { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
      { name: "GETs at least", cell: ({ traffic }) => `${rate(traffic.reads)}/s`, value: ({ traffic }) => traffic.reads, isKey: true },
      { name: "bytes", cell: ({ traffic }) => `${bytes(Math.round(traffic.read_bytes))}/s`, value: ({ traffic }) => traffic.read_bytes, isKey: true },
    ], topics)
    : element("p", {}, `${topics.map(({ topic }) => topic).join(", ")}: GETs and throughput are in the brokers' metrics. Name them with `, element("code", {}, "--metrics"), ", and look twice."),
    element("p", { class: "quiet" }, "Of all readers of the topic together: brokers do not count by group."));
}
