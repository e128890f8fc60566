// Messages of a topic, all partitions merged by time. A search is a row of bounded requests: to stop is to ask no more.

import { quoted, readOnlyNote } from "./commands.js";
import { bytes, count, element, plural, time } from "./format.js";
import { longName } from "./names.js";
import { fetchJson, topicPath } from "./requests.js";
import { FORMATS, schemaWords, shownAs } from "./record_values.js";
import { table } from "./table.js";

const SHOWN_AT_ONCE = 50;
const PARTITIONS_AT_ONCE = 64; // of a request
const LIVE_MAX = 500; // messages of a live tail that are kept
const PREVIEW_LENGTH = 96;
const TRIES_MAX = 5; // of steps in which the tier gives nothing
const ORDERS = { newest: "newest first", oldest: "oldest first" };
// What makes a search, as the page's address has it.
const FIELDS = ["partition", "order", "offset", "end", "since", "until", "key", "value", "header", "header_value", "where", "from"];

export function recordsPage(name, query) {
  const page = { title: `${name}: messages`, isShown: false, load: (fetchJson) => fetchJson(topicPath(name)) };
  let search = null;

  page.show = (main, topic, { client_arguments: client }) => {
    if (page.isShown) return;
    page.isShown = true;
    const form = controls(topic, query);
    const result = element("div");
    const begin = () => {
      search?.close();
      search = new Search(name, topic, form, result);
      search.goOn();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const address = `#/records/${encodeURIComponent(name)}?${addressOf(form)}`;
      // An address of its own: it may be shared, and Back leads to the search before.
      if (location.hash === address) begin();
      else location.hash = address;
    });
    form.elements.format.addEventListener("change", () => search?.showRecords());
    const produce = readOnlyNote("Produce a message", `isotherm produce ${quoted(name)} ${client}`);
    main.replaceChildren(...longName("h1", name, "Messages of ", element("a", { href: `#/topics/${encodeURIComponent(name)}` }, name)),
      element("section", { class: "card" }, form), result, produce);
    begin();
  };
  page.close = () => search?.close();
  return page;
}

function controls(topic, query) {
  const option = (value, words, chosen) => element("option", { value, selected: value === chosen }, words);
  const choice = (label, field, options, chosen) => element("label", {}, `${label} `,
    element("select", { name: field }, options.map(([value, words]) => option(value, words, chosen))));
  const text = (label, field, hint = "") => element("label", {}, `${label} `,
    element("input", { type: "text", name: field, value: query.get(field) ?? "", placeholder: hint, autocomplete: "off", spellcheck: "false" }));
  const partitions = [["", "all"], ...topic.by_partition.map((row) => [String(row.partition), String(row.partition)])];
  // An offset alone is read upwards from there.
  const order = query.get("order") ?? (query.has("offset") ? "oldest" : "newest");
  const more = element("details", { class: "more", open: FIELDS.slice(3).some((field) => query.get(field)) },
    element("summary", {}, "Filters and ranges"),
    element("div", { class: "tools" }, text("Key has", "key"), text("Value has", "value"),
      text("Header", "header", "name"), text("has", "header_value"), text("JSON", "where", "value.user.id = 42")),
    element("div", { class: "tools" }, text("From offset", "offset", "0"), text("below offset", "end"),
      text("since (UTC)", "since", "2026-01-31T12:00"), text("until (UTC)", "until", "2026-01-31T13:00")));
  return element("form", { class: "query" },
    element("div", { class: "tools" },
      choice("Partition", "partition", partitions, query.get("partition") ?? ""),
      choice("order", "order", Object.entries(ORDERS), order),
      topic.reads_bucket ? choice("read", "from", [["", "as readers do"], ["bucket", "the bucket's copies"]], query.get("from") ?? "") : null,
      choice("show as", "format", Object.entries(FORMATS), "auto"),
      element("button", { type: "submit" }, "Search")), more);
}

function addressOf(form) {
  const query = new URLSearchParams();
  for (const field of FIELDS) {
    const value = form.elements[field]?.value.trim();
    if (value && !(field === "order" && value === "newest" && !form.elements.offset.value)) query.set(field, value);
  }
  return query;
}

function momentOf(text) {
  const moment = /^\d+$/.test(text) ? Number(text) : Date.parse(/(Z|[+-]\d\d:\d\d)$/.test(text) ? text : `${text.replace(" ", "T")}Z`);
  if (Number.isNaN(moment)) throw new Error(`Not a time: “${text}”. It is like 2026-01-31T12:00.`);
  return moment;
}

// What the API is asked for: the filters of an address.
function queryOf(form) {
  const value = (field) => form.elements[field]?.value.trim() ?? "";
  const query = new URLSearchParams({ order: value("order") });
  for (const field of ["key", "value", "header", "header_value", "where", "from"]) if (value(field)) query.set(field, form.elements[field].value);
  for (const [field, name] of [["offset", "first"], ["end", "end"]]) if (value(field)) query.set(name, value(field).replaceAll(",", ""));
  for (const field of ["since", "until"]) if (value(field)) query.set(field, momentOf(value(field)));
  return query;
}

// One search: a queue of messages for each partition, merged by time.
class Search {
  constructor(topic, { by_partition: rows }, form, host) {
    Object.assign(this, { topic, form, isStopped: false, records: [], shown: 0, cost: new Map(), examined: 0, tail: null });
    const partition = form.elements.partition.value;
    this.isNewest = form.elements.order.value === "newest";
    this.lines = rows.filter((row) => partition === "" || String(row.partition) === partition)
      .map((row) => ({ partition: row.partition, left: String(row.partition), queue: [], whole: null, done: 0, error: null, tries: 0 }));
    this.bar = element("progress", { max: 1, value: 0, "aria-label": "Part of the offsets that was searched" });
    this.button = element("button", { type: "button", onclick: () => this.press() }, "Stop");
    this.said = element("p", { role: "status" });
    const left = this.lines.length - PARTITIONS_AT_ONCE;
    const bound = left > 0 ? element("p", { class: "quiet" }, `Live and the download have the first ${PARTITIONS_AT_ONCE} of ${plural(this.lines.length, "partition")}: choose a partition for the others.`) : null;
    this.problems = element("p", { class: "bad", hidden: true });
    this.spent = element("details", {}, element("summary", {}, "What it cost"), element("div"));
    this.live = element("button", { type: "button", "aria-pressed": "false", onclick: () => this.pressLive() }, "Live");
    this.liveSaid = element("span", { role: "status", class: "quiet" });
    this.download = element("a", { class: "button", download: "", href: "#" }, "Download JSON lines");
    this.list = element("div", { id: "records" });
    this.more = element("button", { type: "button", hidden: true, onclick: () => this.goOn() }, "Load more");
    host.replaceChildren(element("section", { class: "card" },
      element("div", { class: "tools search" }, this.said, this.bar, this.button, this.live, this.download),
      this.liveSaid, bound, this.problems, this.spent),
    this.list, element("div", { class: "tools" }, this.more));
  }

  close() {
    this.isStopped = true;
    this.tail?.close();
  }

  press() {
    if (this.isRunning) this.isStopped = true;
    else this.goOn();
  }

  async goOn() {
    if (this.isRunning) return;
    this.isStopped = false;
    this.isRunning = true;
    this.button.textContent = "Stop";
    this.button.hidden = false;
    this.bar.removeAttribute("data-idle");
    this.more.hidden = true;
    try {
      this.query ??= queryOf(this.form);
      this.download.href = `${topicPath(this.topic)}/download?${this.query}&ranges=${this.lines.map((line) => line.partition).slice(0, PARTITIONS_AT_ONCE)}`;
      await this.search(this.records.length + SHOWN_AT_ONCE);
    } catch (error) {
      this.said.textContent = `Nothing more can be read: ${error.message}`;
    }
    this.isRunning = false;
    this.button.textContent = "Go on";
    // "Load more" is where the reader is then.
    this.button.hidden = this.isEnd || this.records.length > 0;
    this.bar.toggleAttribute("data-idle", true);
    this.more.hidden = this.isEnd || !this.records.length;
  }

  get isEnd() {
    return this.lines.every((line) => line.left === null && !line.queue.length);
  }

  // The next message is known once each partition has one, or has no more.
  async search(shownMax) {
    this.query.set("limit", SHOWN_AT_ONCE);
    while (!this.isStopped && this.records.length < shownMax) {
      const empty = this.lines.filter((line) => line.left !== null && !line.queue.length);
      if (empty.length) {
        if (this.records.length !== this.shown) this.showRecords();
        await this.step(empty.slice(0, PARTITIONS_AT_ONCE));
        this.tell();
        continue;
      }
      const next = this.lines.filter((line) => line.queue.length).sort((one, other) => this.before(one.queue[0], other.queue[0]))[0];
      if (!next) break;
      this.records.push(next.queue.shift());
    }
    this.tell();
    this.showRecords();
  }

  before(one, other) {
    return this.isNewest ? other.timestamp_ms - one.timestamp_ms : one.timestamp_ms - other.timestamp_ms;
  }

  async step(lines) {
    const ranges = lines.map((line) => line.left).join(",");
    const answer = await fetchJson(`${topicPath(this.topic)}/records?${this.query}&ranges=${ranges}`);
    for (const part of answer.partitions) {
      const line = this.lines.find((each) => each.partition === part.partition);
      line.tries = part.left === line.left && answer.partitions[0] === part ? line.tries + 1 : 0;
      line.left = part.error || line.tries > TRIES_MAX ? null : part.left;
      line.error = part.error ?? (line.tries > TRIES_MAX ? "the tier gives nothing" : null);
      this.examined += part.examined;
      if (part.first_offset !== null) {
        line.whole ??= part.end_offset - part.first_offset;
        line.end ??= part.end_offset;
        const [, first, end] = (part.left ?? "").split(":").map(Number);
        line.done = part.left === null ? line.whole : line.whole - (end - first);
      }
      line.queue.push(...part.records.map((row) => ({ ...row, partition: part.partition })));
    }
    for (const each of answer.cost) {
      const key = `${each.tier} ${each.source}`;
      const sum = this.cost.get(key) ?? { ...each, reads: 0, bytes: 0, seconds: 0 };
      for (const field of ["reads", "bytes", "seconds"]) sum[field] += each[field];
      this.cost.set(key, sum);
    }
  }

  tell() {
    const [whole, done] = ["whole", "done"].map((field) => this.lines.reduce((sum, line) => sum + (line[field] ?? 0), 0));
    const spent = [...this.cost.values()];
    const read = spent.reduce((sum, each) => sum + each.bytes, 0);
    this.bar.value = this.isEnd || !whole ? Number(this.isEnd) : done / whole;
    this.said.textContent = `${plural(this.records.length, "message")} found, ${count(this.examined)} examined of ${count(whole)} offsets in `
      + `${plural(this.lines.length, "partition")}; Total ${plural(spent.reduce((sum, each) => sum + each.reads, 0), "read")}, ${bytes(read)}`
      + `${this.isEnd ? "; the end is reached." : "."}`;
    this.spent.lastChild.replaceChildren(costTable(spent));
    const faults = this.lines.filter((line) => line.error);
    this.problems.hidden = !faults.length;
    this.problems.textContent = faults.map((line) => `Partition ${line.partition}: ${line.error}`).join(" ");
  }

  showRecords() {
    const format = this.form.elements.format.value;
    this.shown = this.records.length;
    this.list.replaceChildren(this.records.length ? element("section", { class: "card" },
      recordTable(this.topic, this.records, format)) : "");
  }

  pressLive() {
    if (this.tail) this.endLive("");
    else this.beginLive();
  }

  beginLive() {
    const starts = this.lines.slice(0, PARTITIONS_AT_ONCE).map((line) => (line.end && this.isNewest ? `${line.partition}:${line.end}` : line.partition));
    const query = new URLSearchParams(this.query);
    for (const field of ["order", "limit", "first", "end", "since", "until", "from"]) query.delete(field);
    this.tail = new EventSource(`${topicPath(this.topic)}/tail?${query}&ranges=${starts}`);
    this.live.setAttribute("aria-pressed", "true");
    this.live.textContent = "Stop live";
    this.liveSaid.textContent = "Waiting for the live tail …";
    this.tail.addEventListener("begin", () => {
      this.liveSaid.textContent = "Live: new messages come first.";
    });
    this.tail.addEventListener("records", (event) => this.takeLive(JSON.parse(event.data)));
    this.tail.addEventListener("end", (event) => this.endLive(`The live tail has ended: ${JSON.parse(event.data).reason}.`));
    this.tail.addEventListener("error", () => this.endLive("The live tail has ended: too many pages follow topics, or the console is gone."));
  }

  takeLive({ partitions, skipped_offsets: skipped }) {
    const fresh = partitions.flatMap((part) => part.records.map((row) => ({ ...row, partition: part.partition })))
      .sort((one, other) => other.timestamp_ms - one.timestamp_ms);
    for (const part of partitions) {
      const line = this.lines.find((each) => each.partition === part.partition);
      line.end = Math.max(line.end ?? 0, ...part.records.map((row) => row.offset + 1));
    }
    this.records.unshift(...fresh);
    this.records.length = Math.min(this.records.length, LIVE_MAX);
    this.liveSaid.textContent = `Live: ${plural(fresh.length, "message")} at ${new Date().toLocaleTimeString()}`
      + `${skipped ? `; ${count(skipped)} offsets were skipped, as they came faster than they are shown` : ""}.`;
    this.showRecords();
  }

  endLive(words) {
    this.tail.close();
    this.tail = null;
    this.live.setAttribute("aria-pressed", "false");
    this.live.textContent = "Live";
    this.liveSaid.textContent = words;
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

function recordTable(topic, records, format) {
  return table("Messages", [
    { name: "partition · offset", cell: (row) => `${row.partition} · ${count(row.offset)}`, value: "offset", kind: "left" },
    { name: "time, UTC", cell: (row) => time(row.timestamp_ms).replace(" UTC", ""), value: "timestamp_ms", kind: "left date", isKey: true },
    { name: "tier", cell: (row) => tierMark(row.tier), value: "tier", kind: "left" },
    { name: "key", cell: (row) => shownAs(row.key, format === "hex" ? "hex" : "line").slice(0, PREVIEW_LENGTH), kind: "left name", isKey: true },
    { name: "value", cell: (row) => valueCell(topic, row, format), kind: "left wide", isKey: true },
  ], records, { most: Infinity, noun: "messages" });
}

function valueCell(topic, row, format) {
  const preview = shownAs(row.value, format === "hex" ? "hex" : "line");
  const box = element("details", {}, element("summary", {}, preview.slice(0, PREVIEW_LENGTH) || "empty", preview.length > PREVIEW_LENGTH ? " …" : ""));
  // Made when it is first opened: most records never are.
  box.addEventListener("toggle", () => box.open && box.childElementCount === 1 && box.append(...details(topic, row, format)));
  return box;
}

function details(topic, row, format) {
  const { batch } = row;
  const value = shownAs(row.value, format);
  const copied = element("span", { role: "status", class: "quiet" });
  const copy = () => navigator.clipboard.writeText(value).then(
    () => copied.replaceChildren("copied"), () => copied.replaceChildren("The browser does not allow it: mark it by hand."));
  const facts = [
    ["key", shownAs(row.key, format)],
    ["key's schema", schemaWords(row.key)],
    ["value's schema", schemaWords(row.value)],
    ...row.headers.map(({ name, value: content }) => [`header ${name}`, shownAs(content, format)]),
    ["batch", `${plural(batch.records, "record")} from offset ${count(batch.base_offset)}, ${bytes(batch.size_in_bytes)}, compression ${batch.compression}`],
    ["leader epoch", String(batch.leader_epoch)],
    ["producer", batch.producer_id < 0 ? "not idempotent" : `${batch.producer_id}${batch.is_transactional ? ", in a transaction" : ""}`],
    ["remote copy", row.segment ? `segment ${row.segment}` : "none yet"],
  ];
  return [element("pre", {}, value),
    element("div", { class: "tools" }, element("button", { type: "button", "aria-label": `Copy value at offset ${row.offset}`, onclick: copy }, "Copy value"), copied),
    element("dl", { class: "pairs" }, facts.filter(([, words]) => words).flatMap(([key, words]) => [element("dt", {}, key), element("dd", {}, words)])),
    element("a", { href: `#/topics/${encodeURIComponent(topic)}?partition=${row.partition}` }, `The tier map of partition ${row.partition}`)];
}
