// The tables that isotherm pipeline table made of topics.

import { command } from "./commands.js";
import { count, element, time } from "./format.js";
import { table } from "./table.js";
import { topicLink } from "./topics.js";

const known = (key) => (row) => (row[key] === null ? "unknown" : count(row[key]));

function covered({ covered: offsets }) {
  const parts = Object.entries(offsets);
  return parts.slice(0, 8).map(([partition, offset]) => `${partition}: ${count(offset)}`).join(", ") + (parts.length > 8 ? ", …" : "");
}

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
      { name: "table", cell: (row) => row.table, value: "table", kind: "left name" },
      { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
      { name: "rows", cell: known("rows"), value: "rows", isKey: true },
      { name: "lag, offsets", cell: known("lag"), value: "lag", isKey: true },
      { name: "dead letters", cell: (row) => element("span", { class: row.dead_letters ? "bad" : null }, known("dead_letters")(row)), value: "dead_letters", isKey: true },
      { name: "last commit", cell: (row) => (row.last_commit_ms === null ? "none" : time(row.last_commit_ms)), value: "last_commit_ms", kind: "date" },
      { name: "snapshots", cell: (row) => count(row.snapshots), value: "snapshots" },
      { name: "next offsets", cell: covered, kind: "left wraps" },
      { name: "mode", cell: (row) => row.mode, value: "mode", kind: "left" },
      { name: "values", cell: (row) => row.value_format, value: "value_format", kind: "left" },
    ], tables, { noun: "tables" }) : element("p", { class: "quiet" }, error ? "" : "No table of a topic is in this warehouse.")].filter(Boolean);
}
