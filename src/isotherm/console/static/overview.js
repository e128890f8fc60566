// The cluster: its brokers, its topics, what each tier holds.

import { brokerTable } from "./brokers.js";
import { age, bytes, count, dollars, element, figure, plural, problemList, rate, sizeText } from "./format.js";
import { table } from "./table.js";
import { legend, SHORT_COLUMNS, TopicList, topicLink } from "./topics.js";

const TOPICS_SHOWN = 10;

export function overviewPage() {
  const page = { title: "Overview", isShown: false, load: (fetchJson) => fetchJson("api/overview") };
  const list = new TopicList(SHORT_COLUMNS, TOPICS_SHOWN);

  page.show = (main, data) => {
    if (!page.isShown) {
      page.isShown = true;
      main.replaceChildren(element("h1", {}, "Overview"), element("div", { id: "problems" }), element("div", { id: "sums" }),
        element("section", { class: "card" }, element("h2", {}, "The largest topics"), legend(), list.element,
          element("p", {}, element("a", { href: "#/topics" }, "All topics"))),
        element("section", { class: "card", id: "brokers" }),
        element("section", { class: "card", id: "errors", hidden: !data.errors }));
    }
    main.querySelector("#problems").replaceChildren(...problemList(data.problems));
    main.querySelector("#sums").replaceChildren(sums(data));
    main.querySelector("#brokers").replaceChildren(element("h2", {}, "Brokers"), brokerTable(data));
    if (data.errors) {
      main.querySelector("#errors").replaceChildren(element("h2", {}, "Errors of the last hour"), ...errors(data));
    }
    list.show(data.topics);
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
    figure("Not copied yet", sizeText(total.copy_lag_bytes), total.copy_lag_s ? `newest copy ${age(total.copy_lag_s)} old` : ""),
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
  if (known === null) return figure("Cost a month", dollars(storage), `at ${priceWords(price)}, without requests`);
  return figure("Cost a month", dollars(storage + known), `${dollars(storage)} at ${priceWords(price)}, ${dollars(known)} for requests`
    + ` as in the last ${age((now - traffic.since_ms) / 1000)}`);
}

// Of several steps of a price it is the mean.
const priceWords = (price) => `$${Number(price.toFixed(5))} a GiB`;

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
    { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
    { name: "errors", cell: (row) => row.errors, value: "errors", kind: "left", isKey: true },
    { name: "broker", cell: (row) => row.broker, value: "broker", kind: "left name" },
    { name: "count", cell: (row) => count(row.count), value: "count", isKey: true },
  ], rows)];
}
