// The topics of the cluster as a table, and the page of all of them.

import { age, bytes, count, dollars, element, sizeText } from "./format.js";
import { table } from "./table.js";

const isInternal = (topic) => topic.is_internal || topic.topic.startsWith("__");

export const topicLink = (name) => element("a", { href: `#/topics/${encodeURIComponent(name)}`, title: name }, name);

// A table with a field to find topics by name. `most` rows of it are shown.
export class TopicList {
  constructor(columns, most) {
    Object.assign(this, { columns, most, wanted: "", withInternal: false, all: [] });
    this.rows = element("div", { id: "topics" });
    this.element = element("div", {}, element("div", { class: "tools" },
      element("label", {}, "Find ", element("input", { type: "search", name: "find", oninput: (event) => {
        this.wanted = event.target.value.toLowerCase();
        this.fill();
      } })),
      element("label", {}, element("input", { type: "checkbox", onchange: (event) => {
        this.withInternal = event.target.checked;
        this.fill();
      } }), " internal topics too")), this.rows);
  }

  show(topics) {
    this.all = topics;
    this.fill();
  }

  fill() {
    const chosen = this.all.filter((topic) => topic.topic.toLowerCase().includes(this.wanted) && (this.withInternal || !isInternal(topic)));
    chosen.sort((one, other) => other.total_bytes - one.total_bytes || (one.topic < other.topic ? -1 : 1));
    this.rows.replaceChildren(chosen.length ? table("Topics", this.columns, chosen, { most: this.most, noun: "topics" })
      : element("p", { class: "quiet" }, "No topic."));
  }
}

const COLUMNS = {
  topic: { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
  where: { name: "where", cell: stack, kind: "left" },
  partitions: { name: "partitions", cell: (row) => count(row.partitions), value: "partitions" },
  all: { name: "in all", cell: (row) => bytes(row.total_bytes), value: "total_bytes", isKey: true },
  local: { name: "local", cell: (row) => bytes(row.local_bytes), value: "local_bytes" },
  remote: { name: "remote", cell: (row) => bytes(row.remote_bytes), value: "remote_bytes" },
  copyLag: { name: "copy lag", cell: (row) => (row.is_tiered ? `${sizeText(row.copy_lag_bytes)} · ${age(row.copy_lag_s)}` : "not tiered"),
    value: (row) => (row.is_tiered ? row.copy_lag_bytes : null), isKey: true },
  deletionLag: { name: "deletion lag", cell: (row) => bytes(row.deletion_lag_bytes) + (row.deletion_lag_s ? ` · ${age(row.deletion_lag_s)}` : ""),
    value: "deletion_lag_bytes" },
  missing: { name: "missing", cell: (row) => element("span", { class: row.missing_offsets ? "bad" : null }, count(row.missing_offsets)),
    value: "missing_offsets", isKey: true },
  cost: { name: "a month", cell: (row) => dollars(row.cost_per_month), value: "cost_per_month" },
};

export const SHORT_COLUMNS = ["topic", "where", "all", "local", "remote", "copyLag", "missing"].map((key) => COLUMNS[key]);

export function topicsPage() {
  const page = { title: "Topics", isShown: false, load: (fetchJson) => fetchJson("api/overview") };
  const list = new TopicList(Object.values(COLUMNS));
  page.show = (main, { topics }) => {
    if (!page.isShown) {
      page.isShown = true;
      main.replaceChildren(element("h1", {}, "Topics"), element("section", { class: "card" }, legend(), list.element));
    }
    list.show(topics);
  };
  return page;
}

// Which topic's records?
export function recordTopicsPage() {
  const page = { title: "Records", isShown: false, load: (fetchJson) => fetchJson("api/overview") };
  const list = new TopicList([
    { name: "topic", cell: ({ topic }) => element("a", { href: `#/records/${encodeURIComponent(topic)}`, title: topic }, topic), value: "topic", kind: "left name" },
    COLUMNS.partitions, COLUMNS.all, COLUMNS.remote,
  ]);
  page.show = (main, { topics }) => {
    if (!page.isShown) {
      page.isShown = true;
      main.replaceChildren(element("h1", {}, "Records"), element("section", { class: "card" },
        element("p", { class: "quiet" }, "Choose the topic whose messages you want to see."), list.element));
    }
    list.show(topics);
  };
  return page;
}

function stack(topic) {
  const parts = [
    ["local", topic.local_bytes - topic.overlap_bytes],
    ["both", topic.overlap_bytes],
    ["remote", topic.total_bytes - topic.local_bytes],
  ];
  const words = parts.map(([kind, size]) => `${kind} ${bytes(size)}`).join(", ");
  const bar = element("div", { class: "stack", role: "img", "aria-label": words, title: words });
  for (const [kind, size] of parts) {
    const part = element("i", { class: `k-${kind}` });
    part.style.width = topic.total_bytes ? `${(100 * size) / topic.total_bytes}%` : "0";
    bar.append(part);
  }
  return bar;
}

export function legend() {
  const kinds = [["local", "only local"], ["both", "in both tiers"], ["remote", "only remote"]];
  return element("ul", { class: "legend" },
    kinds.map(([kind, words]) => element("li", {}, element("span", { class: `swatch k-${kind}` }), words)));
}
