// The last runs of audit, sweep, scrub and verify, and what they found.

import { command } from "./commands.js";
import { count, element, plural, time } from "./format.js";
import { longName } from "./names.js";
import { table } from "./table.js";

const VERDICTS = { 0: "clean", 1: "failed", 2: "wrong options", 3: "findings" };

const reportLink = (name) => element("a", { href: `#/jobs/${encodeURIComponent(name)}` }, name);
const verdict = (code) => (code === null ? "" : VERDICTS[code] ?? `ended with ${code}`);

export function jobsPage() {
  const page = { title: "Jobs", isShown: false, load: (fetchJson) => fetchJson("api/jobs") };
  const said = element("p", { role: "status" });

  const start = (job, token) => async () => {
    const answer = await fetch(`api/jobs/${job}`, { method: "POST", headers: { "x-csrf-token": token } });
    const body = await answer.json();
    said.textContent = answer.ok ? `${job} has begun. Its report is listed once it has ended.` : body.error;
  };

  page.show = (main, { reports, running, startable, token }, { client_arguments: client }) => {
    page.isShown = true;
    const buttons = startable.map((job) =>
      element("button", { type: "button", disabled: running !== null, onclick: start(job, token) }, `Run ${job}`));
    main.replaceChildren(element("h1", {}, "Jobs"),
      startable.length ? element("section", { class: "card" }, element("h2", {}, "Start"),
        element("p", { class: "quiet" }, "Each only reads, and takes a while: it starts Spark."),
        element("div", { class: "tools" }, buttons), said, running ? element("p", {}, `${running} is running.`) : null) : "",
      element("section", { class: "card" }, element("h2", {}, "Last runs"), reports.length ? table("Last runs", [
        { name: "report", cell: (row) => reportLink(row.name), value: "name", kind: "left name" },
        { name: "job", cell: (row) => row.job, value: "job", kind: "left" },
        { name: "written", cell: (row) => time(row.written_ms), value: "written_ms", kind: "left date", isKey: true },
        { name: "findings", cell: (row) => element("span", { class: row.found ? "bad" : null }, `${count(row.found)}${row.is_cut ? " or more" : ""}`),
          value: "found", isKey: true },
        { name: "ended", cell: (row) => verdict(row.exit_code), value: "exit_code", kind: "left", isKey: true },
      ], reports) : [element("p", {}, "No report. A report is what a job prints with --json, in the folder of --reports:"),
        command(`isotherm pipeline audit ${client} --json > REPORTS/audit-2026-01-31.jsonl`)]));
  };
  return page;
}

export function reportPage(name) {
  const page = { title: name, isShown: false, load: (fetchJson) => fetchJson(`api/jobs/reports/${encodeURIComponent(name)}`) };
  page.show = (main, report) => {
    if (page.isShown) return; // a report does not change
    page.isShown = true;
    const place = (row) => (row.topic === null ? "" : element("a", {
      href: `#/topics/${encodeURIComponent(row.topic)}?partition=${row.partition ?? 0}` }, `${row.topic} ${row.partition ?? ""}`));
    const records = (row) => (row.topic === null || row.start_offset === null ? "" : element("a", {
      href: `#/records/${encodeURIComponent(row.topic)}?partition=${row.partition}&offset=${row.start_offset}` }, count(row.start_offset)));
    main.replaceChildren(...longName("h1", name, name),
      element("p", {}, `${plural(report.found, "finding")}, written ${time(report.written_ms)}. ${verdict(report.exit_code)}`),
      element("section", { class: "card" }, report.findings.length ? table("Findings", [
        { name: "what", cell: (row) => row.kind, value: "kind", kind: "left" },
        { name: "tier map", cell: place, value: "topic", kind: "left name", isKey: true },
        { name: "from offset", cell: records, value: "start_offset", isKey: true },
        { name: "segment", cell: (row) => row.segment_id ?? "", value: "segment_id", kind: "left name" },
        { name: "detail", cell: (row) => row.detail, value: "detail", kind: "left wide", isKey: true },
      ], report.findings) : element("p", {}, "Nothing was found."),
      report.found > report.findings.length ? element("p", { class: "quiet" }, `The first ${report.findings.length}.`) : null),
      report.messages.length ? element("section", { class: "card" }, element("h2", {}, "Messages"), element("pre", {}, report.messages.join("\n"))) : "");
  };
  return page;
}
