// The cluster: its brokers, its topics, what each tier holds.

import { age, bytes, count, dollars, element, figure, plural, problemList, rate, table } from "./format.js";

const ROWS_MAX = 500;

export function overviewPage() {
  const page = { title: "Overview", isShown: false, load: (fetchJson) => fetchJson("api/overview") };
  let wanted = "";
  let withInternal = false;
  let list = null;
  let data = null;

  const showTopics = () => list.replaceChildren(topics(data, wanted, withInternal));

  page.show = (main, fresh) => {
    data = fresh;
    if (!page.isShown) {
      page.isShown = true;
      list = element("div", { id: "topics" });
      const tools = element("div", { class: "tools" },
        element("label", {}, "Find ", element("input", { type: "search", name: "find", oninput: (event) => {
          wanted = event.target.value.toLowerCase();
          showTopics();
        } })),
        element("label", {}, element("input", { type: "checkbox", onchange: (event) => {
          withInternal = event.target.checked;
          showTopics();
        } }), " internal topics too"));
      main.replaceChildren(element("h1", {}, "Overview"), element("div", { id: "problems" }), element("div", { id: "sums" }),
        element("section", { class: "card" }, element("h2", {}, "Topics"), legend(), tools, list),
        element("section", { class: "card", id: "brokers" }),
        element("section", { class: "card", id: "errors", hidden: !data.errors }));
    }
    main.querySelector("#problems").replaceChildren(...problemList(data.problems));
    main.querySelector("#sums").replaceChildren(sums(data));
    main.querySelector("#brokers").replaceChildren(element("h2", {}, "Brokers"), brokers(data));
    if (data.errors) {
      main.querySelector("#errors").replaceChildren(element("h2", {}, "Errors of the last hour"), ...errors(data));
    }
    showTopics();
  };
  return page;
}

function sums({ total, metadata_topic: metadata, price_per_gib_month: price, topics, errors: seen, traffic, read_at_ms: now }) {
  const shown = topics.filter((topic) => topic.is_tiered).length;
  return element("dl", { class: "figures wide" },
    figure("In all", bytes(total.total_bytes), "each byte once"),
    figure("Local", bytes(total.local_bytes), "leaders' logs"),
    figure("Remote", bytes(total.remote_bytes), plural(total.remote_segments, "segment")),
    figure("In both", bytes(total.overlap_bytes), "local and remote"),
    figure("Not copied yet", bytes(total.copy_lag_bytes), total.copy_lag_s ? `newest copy ${age(total.copy_lag_s)} old` : ""),
    figure("Not deleted yet", bytes(total.deletion_lag_bytes),
      plural(total.deletion_lag_segments, "segment") + (total.deletion_lag_s ? `, due for ${age(total.deletion_lag_s)}` : "")),
    figure("Missing", count(total.missing_offsets), "offsets in no tier", total.missing_offsets > 0),
    costFigure(total, price, traffic, now),
    traffic ? figure("Read from remote", `${bytes(Math.round(traffic.read_bytes))}/s`, `${rate(traffic.reads)} reads/s, each a GET at least`) : null,
    figure("Tiered topics", count(shown), `of ${count(topics.length)}`),
    metadata
      ? figure("Metadata topic", bytes(metadata.size_in_bytes), metadataWords(metadata))
      : figure("Metadata topic", "none", "no remote tier is known"),
    seen ? figure("Errors", count(seen.total), since(seen, now), seen.total > 0 || seen.unanswered.length > 0) : null);
}

function costFigure({ cost_per_month: storage }, price, traffic, now) {
  const known = traffic?.cost_per_month ?? null;
  if (known === null) return figure("Cost a month", dollars(storage), `at $${price} a GiB, without requests`);
  return figure("Cost a month", dollars(storage + known), `${dollars(storage)} at $${price} a GiB, ${dollars(known)} for requests`
    + ` as in the last ${age((now - traffic.since_ms) / 1000)}`);
}

function metadataWords({ records, records_per_day: perDay, bytes_per_day: size, restart_s: restart }) {
  return [`${count(records)} records at most`,
    perDay === null ? "" : `gets ${count(perDay)} a day, ${bytes(size)}`,
    restart === null ? "" : `read here in ${restart < 10 ? restart.toFixed(1) : Math.round(restart)} s`].filter(Boolean).join(" · ");
}

function since({ since_ms: begin, unanswered }, now) {
  const silent = unanswered.length ? `${plural(unanswered.length, "broker")} without metrics` : "";
  return [begin === null ? "" : `in the last ${age((now - begin) / 1000)}`, silent].filter(Boolean).join(", ");
}

function errors({ errors: { rows, unanswered } }) {
  const silent = unanswered.map(({ url, reason }) => element("p", { class: "bad" }, `${url}: ${reason}`));
  if (!rows.length) return [...silent, element("p", { class: "quiet" }, "None that a topic has counted.")];
  return [...silent, table("Errors", [
    ["topic", (row) => element("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic)],
    ["errors", (row) => row.errors, "left"],
    ["broker", (row) => row.broker, "left"],
    ["count", (row) => count(row.count)],
  ], rows)];
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

function legend() {
  const kinds = [["local", "only local"], ["both", "in both tiers"], ["remote", "only remote"]];
  return element("ul", { class: "legend" },
    kinds.map(([kind, words]) => element("li", {}, element("span", { class: `swatch k-${kind}` }), words)));
}

function topics({ topics: all }, wanted, withInternal) {
  const found = all.filter((topic) =>
    topic.topic.toLowerCase().includes(wanted) && (withInternal || !(topic.is_internal || topic.topic.startsWith("__"))));
  if (!found.length) return element("p", { class: "quiet" }, "No topic.");
  found.sort((one, other) => other.total_bytes - one.total_bytes || (one.topic < other.topic ? -1 : 1));
  const columns = [
    ["topic", (row) => element("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic)],
    ["where", stack, "left"],
    ["partitions", (row) => count(row.partitions)],
    ["in all", (row) => bytes(row.total_bytes)],
    ["local", (row) => bytes(row.local_bytes)],
    ["remote", (row) => bytes(row.remote_bytes)],
    ["copy lag", (row) => (row.is_tiered ? `${bytes(row.copy_lag_bytes)} · ${age(row.copy_lag_s)}` : "not tiered")],
    ["deletion lag", (row) => bytes(row.deletion_lag_bytes) + (row.deletion_lag_s ? ` · ${age(row.deletion_lag_s)}` : "")],
    ["missing", (row) => element("span", { class: row.missing_offsets ? "bad" : null }, count(row.missing_offsets))],
    ["a month", (row) => dollars(row.cost_per_month)],
  ];
  const shown = table("Topics", columns, found.slice(0, ROWS_MAX));
  if (found.length <= ROWS_MAX) return shown;
  return element("div", {}, shown, element("p", { class: "quiet" }, `${ROWS_MAX} of ${count(found.length)} topics, the largest.`));
}

function brokers({ brokers: all, controller_id: controller }) {
  return table("Brokers", [
    ["broker", (row) => `${row.broker_id}${row.broker_id === controller ? " · controller" : ""}`],
    ["address", (row) => `${row.host}:${row.port}`, "left"],
    ["rack", (row) => row.rack || "", "left"],
    ["local, all replicas", (row) => bytes(row.local_bytes)],
    ["state", (row) => element("span", { class: row.error ? "bad" : null }, row.error || "answers"), "left"],
  ], all);
}
