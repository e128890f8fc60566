// The tables that isotherm pipeline table made of topics.

import { command } from "./commands.js";
import { count, element, figure, plural, time } from "./format.js";
import { longName } from "./names.js";
import { table } from "./table.js";
import { topicLink } from "./topics.js";

const known = (key) => (row) => (row[key] === null ? "unknown" : count(row[key]));

const tableLink = (name) => element("a", { href: `#/tables/${encodeURIComponent(name)}`, title: name }, name);
const marked = (row) => element("span", { class: row.dead_letters ? "bad" : null }, known("dead_letters")(row));

export function tablesPage() {
  const page = { title: "Tables", isShown: false, load: (fetchJson) => fetchJson("api/tables") };
  page.show = (main, { tables, tables_error: error }, { client_arguments: client }) => {
    page.isShown = true;
    main.replaceChildren(element("h1", {}, "Tables"), element("section", { class: "card" }, content(tables, error, client)));
  };
  return page;
}

function content(tables, error, client) {
  if (tables === null) {
    return [element("p", {}, "The console knows no warehouse. Start it with the folder that ", element("code", {}, "isotherm pipeline table"), " writes to:"),
      command(`isotherm console ${client} --warehouse FOLDER`)];
  }
  return [error ? element("p", { class: "bad" }, `The tables cannot be read now. ${error}`) : null,
    tables.length ? table("Tables", [
      { name: "table", cell: (row) => tableLink(row.table), value: "table", kind: "left name" },
      { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
      { name: "rows", cell: known("rows"), value: "rows", isKey: true },
      { name: "lag, offsets", cell: known("lag"), value: "lag", isKey: true },
      { name: "dead letters", cell: marked, value: "dead_letters", isKey: true },
      { name: "last commit", cell: (row) => (row.last_commit_ms === null ? "none" : time(row.last_commit_ms)), value: "last_commit_ms", kind: "date" },
      { name: "snapshots", cell: known("snapshots"), value: "snapshots" },
      { name: "format", cell: (row) => row.format, value: "format", kind: "left" },
      { name: "mode", cell: (row) => row.mode, value: "mode", kind: "left" },
      { name: "values", cell: (row) => row.value_format, value: "value_format", kind: "left" },
    ], tables, { noun: "tables" }) : element("p", { class: "quiet" }, error ? "" : "No table of a topic is in this warehouse.")].filter(Boolean);
}

function lastCommit({ last_commit_ms: ms, snapshots }) {
  const [date, ...rest] = ms === null ? ["none"] : time(ms).split(" ");
  return figure("Last commit", date, [...rest, rest.length && snapshots !== null ? "·" : "", snapshots === null ? "" : plural(snapshots, "snapshot")].join(" ").trim());
}

export function tablePage(name) {
  const page = { title: name, isShown: false, load: (fetchJson) => fetchJson(`api/tables/${encodeURIComponent(name)}`) };
  page.show = (main, row) => {
    page.isShown = true;
    main.replaceChildren(...longName("h1", name, name),
      ...longName("p", row.topic, "A table of ", element("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic)),
      element("dl", { class: "figures" },
        figure("Rows", known("rows")(row)),
        figure("Lag", known("lag")(row), row.lag === null ? "of another topic, or no leader answers" : "offsets up to the last stable ones"),
        figure("Dead letters", known("dead_letters")(row), "", row.dead_letters > 0),
        lastCommit(row),
        figure("Mode", row.mode, `values are ${row.value_format}`)),
      element("section", { class: "card", id: "dead-letters" }, element("h2", {}, "Dead letters"), deadLetters(row)),
      element("section", { class: "card", id: "partitions" }, element("h2", {}, "Partitions"), table("Partitions of the table", [
        { name: "partition", cell: (each) => count(each.partition), value: "partition" },
        { name: "next offset", cell: (each) => (each.next_offset === null ? "none yet" : count(each.next_offset)), value: "next_offset", isKey: true },
        { name: "last stable offset", cell: known("last_stable_offset"), value: "last_stable_offset" },
        { name: "lag, offsets", cell: known("lag"), value: "lag", isKey: true },
      ], row.by_partition, { noun: "partitions" })));
  };
  return page;
}

function deadLetters({ topic, dead_letters: total, newest_dead_letters: read, dead_letters_error: error }) {
  const failure = error ? element("p", { class: "bad" }, `The dead letters cannot be read${read ? " now; these are those of before" : ""}. ${error}`) : null;
  if (read === null) return [failure ?? element("p", {}, "None: each record has a row.")];
  const { files, rows, reasons, reasons_total: kinds, newest } = read;
  const place = (each) => element("a", { href: `#/records/${encodeURIComponent(topic)}?partition=${each.partition}&offset=${each.offset}` }, `${each.partition}: ${count(each.offset)}`);
  return [failure,
    element("p", { class: "quiet" }, `Of ${total === null ? "an unknown number" : count(total)}, the newest ${count(rows)} in ${plural(files, "file")} were read.`),
    table("Reasons", [
      { name: "reason", cell: ([reason]) => reason, value: ([reason]) => reason, kind: "left wide" },
      { name: "dead letters", cell: ([, some]) => count(some), value: ([, some]) => some, isKey: true },
    ], reasons),
    kinds > reasons.length ? element("p", { class: "quiet" }, `The most frequent ${reasons.length} of ${count(kinds)} reasons.`) : null,
    table("The newest dead letters", [
      { name: "partition: offset", cell: place, value: (each) => each.offset },
      { name: "time", cell: (each) => (each.timestamp_ms === null ? "none" : time(each.timestamp_ms)), value: "timestamp_ms", kind: "left date", isKey: true },
      { name: "reason", cell: (each) => each.reason, value: "reason", kind: "left wide", isKey: true },
    ], newest)].filter(Boolean);
}
