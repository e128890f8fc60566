// Records of one partition, from either tier. A scan is a row of bounded requests: to stop is to ask no more.

import { bytes, count, element, plural, time } from "./format.js";
import { fetchJson, topicPath } from "./requests.js";
import { FORMATS, schemaWords, shownAs } from "./record_values.js";
import { table } from "./table.js";

const FOUND_AT_ONCE = 50;
const PREVIEW_LENGTH = 96;
const TRIES_MAX = 5; // of steps in which the tier gives nothing
const STARTS = { start: "the log start", offset: "an offset", time: "a time (UTC)" };

export function recordsPage(name, query) {
  const page = { title: `${name}: records`, isShown: false, load: (fetchJson) => fetchJson(topicPath(name)) };
  let scan = null;

  page.show = (main, topic) => {
    if (page.isShown) return;
    page.isShown = true;
    const form = controls(topic, query);
    const result = element("div");
    const begin = (event) => {
      event?.preventDefault();
      if (scan) scan.isStopped = true;
      scan = new Scan(name, form, result);
      scan.goOn();
    };
    form.addEventListener("submit", begin);
    form.elements.format.addEventListener("change", () => scan?.showRecords());
    main.replaceChildren(
      element("h1", {}, element("a", { href: `#/topics/${encodeURIComponent(name)}` }, name), ": records"),
      element("section", { class: "card" }, form), result);
    if (query.has("partition")) begin();
  };
  page.close = () => {
    if (scan) scan.isStopped = true;
  };
  return page;
}

function controls(topic, query) {
  const option = (value, words, chosen) => element("option", { value, selected: value === chosen }, words);
  const choice = (label, field, options, chosen) => element("label", {}, `${label} `,
    element("select", { name: field }, options.map(([value, words]) => option(value, words, chosen))));
  const text = (label, field, hint = "") => element("label", {}, `${label} `,
    element("input", { type: "text", name: field, value: query.get(field) ?? "", placeholder: hint, autocomplete: "off" }));
  const partitions = topic.by_partition.map((row) => [String(row.partition), String(row.partition)]);
  const starting = ["offset", "time"].find((kind) => query.has(kind)) ?? "start";
  const at = element("input", { type: "text", name: "at", "aria-label": "Offset or time", value: query.get(starting) ?? "", autocomplete: "off" });
  const from = element("select", { name: "starting" }, Object.entries(STARTS).map(([value, words]) => option(value, words, starting)));
  const showHint = () => {
    at.hidden = from.value === "start";
    at.placeholder = from.value === "time" ? "2026-01-31T12:00" : "0";
  };
  from.addEventListener("change", showHint);
  showHint();
  return element("form", { class: "query" },
    element("div", { class: "tools" },
      choice("Partition", "partition", partitions, query.get("partition")),
      element("label", {}, "from ", from), at,
      topic.reads_bucket ? choice("read", "from", [["leader", "as readers do"], ["bucket", "the bucket's copies"]], query.get("from")) : null,
      choice("show as", "format", Object.entries(FORMATS), "auto")),
    element("div", { class: "tools" }, text("Key has", "key"), text("Value has", "value"),
      text("Header", "header", "name"), text("has", "header_value"),
      element("button", { type: "submit" }, "Find records")));
}

function queryOf(form) {
  const { partition, starting, at, from } = form.elements;
  const query = new URLSearchParams({ limit: FOUND_AT_ONCE });
  for (const field of ["key", "value", "header", "header_value"]) {
    if (form.elements[field].value) query.set(field, form.elements[field].value);
  }
  if (starting.value === "offset") query.set("offset", at.value.replaceAll(",", "").trim() || "0");
  if (starting.value === "time") {
    const text = at.value.trim();
    const moment = /^\d+$/.test(text) ? Number(text) : Date.parse(/(Z|[+-]\d\d:\d\d)$/.test(text) ? text : `${text.replace(" ", "T")}Z`);
    if (Number.isNaN(moment)) throw new Error(`Not a time: “${text}”. It is like 2026-01-31T12:00.`);
    query.set("time", moment);
  }
  if (from?.value === "bucket") query.set("from", "bucket");
  return { partition: partition.value, query };
}

class Scan {
  constructor(topic, form, host) {
    Object.assign(this, { topic, form, isStopped: false, records: [], examined: 0, cost: new Map() });
    this.bar = element("progress", { max: 1, value: 0, "aria-label": "Part of the offsets that was examined" });
    this.said = element("p", { role: "status" });
    this.button = element("button", { type: "button", onclick: () => this.press() }, "Stop");
    this.spent = element("div");
    this.list = element("div", { id: "records" });
    host.replaceChildren(element("section", { class: "card" },
      element("div", { class: "tools" }, this.bar, this.button), this.said, this.spent), this.list);
  }

  press() {
    if (this.isRunning) this.isStopped = true;
    else this.goOn();
  }

  async goOn() {
    this.isStopped = false;
    this.isRunning = true;
    this.button.textContent = "Stop";
    this.button.hidden = false;
    try {
      await this.scan(this.records.length + FOUND_AT_ONCE);
    } catch (error) {
      this.said.textContent = `Nothing more can be read: ${error.message}`;
    }
    this.isRunning = false;
    this.button.textContent = this.isEnd ? "Look for newer ones" : "Go on";
  }

  async scan(foundMax) {
    this.place ??= queryOf(this.form);
    const { partition, query } = this.place;
    for (let tries = 0; !this.isStopped && this.records.length < foundMax && tries < TRIES_MAX;) {
      query.set("limit", foundMax - this.records.length);
      const step = await fetchJson(`${topicPath(this.topic)}/partitions/${partition}/records?${query}`);
      tries = step.next_offset === Number(query.get("offset")) ? tries + 1 : 0;
      query.delete("time");
      query.set("offset", step.next_offset);
      this.take(step);
      if (step.is_end) break;
    }
  }

  take(step) {
    this.first ??= step.first_offset;
    this.isEnd = step.is_end;
    this.examined += step.examined;
    this.records.push(...step.records);
    for (const each of step.cost) {
      const key = `${each.tier} ${each.source}`;
      const sum = this.cost.get(key) ?? { ...each, reads: 0, bytes: 0, seconds: 0 };
      for (const field of ["reads", "bytes", "seconds"]) sum[field] += each[field];
      this.cost.set(key, sum);
    }
    const whole = Math.max(1, step.high_watermark - this.first);
    this.bar.value = (step.next_offset - this.first) / whole;
    this.said.textContent = `${plural(this.records.length, "record")} found, ${count(this.examined)} examined; `
      + (step.is_end ? "the end is reached." : `next is offset ${count(step.next_offset)} of ${count(step.high_watermark)}.`);
    this.spent.replaceChildren(costTable([...this.cost.values()]));
    this.showRecords();
  }

  showRecords() {
    const format = this.form.elements.format.value;
    this.list.replaceChildren(this.records.length ? element("section", { class: "card" },
      recordTable(this.topic, this.place.partition, this.records, format)) : "");
  }
}

const costTable = (rows) => table("What it cost to fetch", [
  { name: "tier", cell: (row) => tierMark(row.tier), value: "tier", kind: "left" },
  { name: "read from", cell: (row) => row.source, value: "source", kind: "left name" },
  { name: "reads", cell: (row) => count(row.reads), value: "reads", isKey: true },
  { name: "bytes", cell: (row) => bytes(row.bytes), value: "bytes", isKey: true },
  { name: "time", cell: (row) => `${(row.seconds * 1000).toFixed(0)} ms`, value: "seconds", isKey: true },
], rows);

const tierMark = (tier) => element("span", {}, element("span", { class: `swatch k-${tier}` }), ` ${tier}`);

function recordTable(topic, partition, records, format) {
  return table("Records", [
    { name: "offset", cell: (row) => count(row.offset), value: "offset", kind: "left" },
    { name: "time", cell: (row) => time(row.timestamp_ms), value: "timestamp_ms", kind: "left", isKey: true },
    { name: "tier", cell: (row) => tierMark(row.tier), value: "tier", kind: "left" },
    { name: "key", cell: (row) => shownAs(row.key, format === "hex" ? "hex" : "line").slice(0, PREVIEW_LENGTH), kind: "left name", isKey: true },
    { name: "value", cell: (row) => valueCell(topic, partition, row, format), kind: "left wide", isKey: true },
  ], records);
}

function valueCell(topic, partition, row, format) {
  const preview = shownAs(row.value, format === "hex" ? "hex" : "line");
  const box = element("details", {}, element("summary", {}, preview.slice(0, PREVIEW_LENGTH) || "empty", preview.length > PREVIEW_LENGTH ? " …" : ""));
  // Made when it is first opened: most records never are.
  box.addEventListener("toggle", () => box.open && box.childElementCount === 1 && box.append(...details(topic, partition, row, format)));
  return box;
}

function details(topic, partition, row, format) {
  const { batch } = row;
  const facts = [
    ["key", shownAs(row.key, format)],
    ["key's schema", schemaWords(row.key)],
    ["value's schema", schemaWords(row.value)],
    ...row.headers.map(({ name, value }) => [`header ${name}`, shownAs(value, format)]),
    ["batch", `${plural(batch.records, "record")} from offset ${count(batch.base_offset)}, ${bytes(batch.size_in_bytes)}, compression ${batch.compression}`],
    ["leader epoch", String(batch.leader_epoch)],
    ["producer", batch.producer_id < 0 ? "not idempotent" : `${batch.producer_id}${batch.is_transactional ? ", in a transaction" : ""}`],
    ["remote copy", row.segment ? `segment ${row.segment}` : "none yet"],
  ];
  return [element("pre", {}, shownAs(row.value, format)),
    element("dl", { class: "pairs" }, facts.filter(([, value]) => value).flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)])),
    element("a", { href: `#/topics/${encodeURIComponent(topic)}` }, `The tier map of partition ${partition}`)];
}
