// Questions that operators ask: why is local so big, what is left over, what will it cost?

import { command } from "./commands.js";
import { age, bytes, count, dollars, element, plural, time } from "./format.js";
import { groupLink } from "./groups.js";
import { table } from "./table.js";
import { topicLink } from "./topics.js";

const TOPICS_MAX = 100;
const TOPICS_AT_FIRST = 10;

export function answersPage() {
  const page = { title: "Answers", isShown: false, load: (fetchJson) => fetchJson("api/answers") };
  const opened = new Set(); // topics whose reasons are shown
  let most = TOPICS_AT_FIRST;
  page.show = (main, data, { client_arguments: client }) => {
    page.isShown = true;
    const all = () => {
      most = TOPICS_MAX;
      page.show(main, data, { client_arguments: client });
    };
    const own = data.topics.filter((topic) => !topic.is_internal && !topic.topic.startsWith("__"));
    main.replaceChildren(element("h1", {}, "Answers"),
      card("Why is local so big?", own.length ? [...own.slice(0, most).map((topic, place) => reasons(topic, opened, place === 0)), rest(own, most, all)]
        : [element("p", { class: "quiet" }, "No topic has a byte.")]),
      card("Which groups are behind?", behind(data)),
      card("What is left over in the bucket?", leftovers(data)),
      card("How long does a broker read the metadata topic when it starts?", restart(data.metadata_topic, client)),
      card("What does it cost, and what will it?", [money(own.slice(0, TOPICS_MAX), data, most)]));
  };
  return page;
}

function rest(topics, most, all) {
  if (most >= Math.min(topics.length, TOPICS_MAX)) return null;
  const words = topics.length > TOPICS_MAX ? `The first ${TOPICS_MAX} of ${count(topics.length)} topics` : `All ${topics.length} topics`;
  return element("p", {}, element("button", { type: "button", onclick: all }, words));
}

const card = (question, answers) => element("section", { class: "card" }, element("h2", {}, question), answers);

function reasons(topic, opened, isFirst) {
  if (isFirst && !opened.size) opened.add(topic.topic);
  const box = element("details", { class: "answer", open: opened.has(topic.topic) },
    element("summary", {}, element("strong", { title: topic.topic }, topic.topic), element("b", {}, bytes(topic.local_bytes)), " ",
      element("span", {}, topic.holds.map((hold) => `${hold.cause} ${bytes(hold.bytes)}`).join(", ") || "nothing local")),
    element("ul", {}, topic.holds.map((hold) => element("li", {},
      element("strong", {}, `${hold.cause}: ${bytes(hold.bytes)}`), ` in ${plural(hold.partitions, "partition")}`,
      hold.since_ms === null ? "" : `, since ${time(hold.since_ms)}`,
      hold.attempts ? `, ${plural(hold.attempts, "upload")} begun` : "",
      hold.failures ? `, ${plural(hold.failures, "copy", "copies")} failed in the last minutes` : "", ". ", hold.remedy,
      ` Most is in partition ${hold.worst_partition}, from offset ${count(hold.first_offset)}.`))),
    element("p", {}, element("a", { href: `#/topics/${encodeURIComponent(topic.topic)}` }, "Its tier map")));
  // The page is made anew with each look; what was opened stays open.
  box.addEventListener("toggle", () => (box.open ? opened.add(topic.topic) : opened.delete(topic.topic)));
  return box;
}

function behind({ groups, groups_error: error }) {
  if (error) return [element("p", { class: "bad" }, error)];
  if (!groups.length) return [element("p", { class: "quiet" }, "None: each group moves, and the next record of each is younger than an hour.")];
  return [table("Groups that are behind", [
    { name: "group", cell: (row) => groupLink(row.group), value: "group", kind: "left name" },
    { name: "type", cell: (row) => row.type, value: "type", kind: "left" },
    { name: "lag, offsets", cell: (row) => count(row.lag), value: "lag", isKey: true },
    { name: "cause", cell: (row) => row.cause, value: "cause", kind: "left wraps", isKey: true },
    { name: "what helps", cell: (row) => row.remedy, kind: "left wraps" },
  ], groups, { most: TOPICS_MAX, noun: "groups" })];
}

function leftovers({ leftovers: rows, sweep_command: sweep }) {
  const said = rows.length
    ? table("Left over", [
      { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
      { name: "partition", cell: (row) => String(row.partition), value: "partition", isKey: true },
      { name: "cause", cell: (row) => row.cause, value: "cause", kind: "left wraps", isKey: true },
      { name: "segments", cell: (row) => count(row.segments), value: "segments" },
      { name: "bytes", cell: (row) => bytes(row.bytes), value: "bytes", isKey: true },
      { name: "oldest", cell: (row) => age(row.oldest_s), value: "oldest_s" },
      { name: "from offset", cell: (row) => count(row.first_offset), value: "first_offset" },
    ], [...rows].sort((one, other) => other.oldest_s - one.oldest_s))
    : element("p", {}, "Nothing that has metadata.");
  return [said, element("p", {}, "Objects without any metadata are found by a sweep, which only reports without ", element("code", {}, "--delete"), ":"),
    command(sweep, "sweep")];
}

function restart(topic, client) {
  if (!topic || topic.restart_s === null) return [element("p", {}, "It was not read here: there is none, or the bucket was read instead.")];
  const grows = topic.records_per_day === null ? "How fast it grows is known when its copies are an hour old."
    : `It gets ${count(topic.records_per_day)} records a day, ${bytes(topic.bytes_per_day)}: two for each copy, and as many when the segment is deleted.`;
  return [element("p", {}, element("strong", {}, `About ${topic.restart_s < 10 ? topic.restart_s.toFixed(1) : Math.round(topic.restart_s)} s`),
    ` by the speed of this console, which read ${count(topic.read_offsets)} offsets of it in ${topic.read_s.toFixed(1)} s; it has ${count(topic.records)} in `
    + `${plural(topic.partitions, "partition")}, ${bytes(topic.size_in_bytes)}. ${grows} `,
    "At level 1 of remote.log.metadata.compaction the topic keeps the last state of each segment alone:"),
    command(`isotherm remote migrate ${client}`)];
}

function money(topics, { price_per_gib_month: price, forecast_months: months }, most) {
  // Null if it is known of no topic.
  const sum = (key, place) => topics.map((row) => (place === undefined ? row[key] : row[key][place])).filter((each) => each !== null)
    .reduce((total, each) => (total ?? 0) + each, topics.length ? null : 0);
  const known = (amount, words) => (amount === null ? "unknown" : words(amount));
  const rows = [...topics].sort((one, other) => other.cost_per_month - one.cost_per_month);
  const all = {
    topic: null, remote_bytes: sum("remote_bytes"), cost_per_month: sum("cost_per_month"), growth_bytes_per_day: sum("growth_bytes_per_day"),
    forecast_cost_per_month: months.map((_, place) => sum("forecast_cost_per_month", place)),
  };
  return element("div", {},
    element("p", { class: "quiet" }, `At $${Number(price.toFixed(5))} a GiB and month, for what is stored. The forecast goes on with the copies of the last 30 days, and lets retention delete; it is unknown in a topic's first hour.`),
    table("Cost", [
      { name: "topic", cell: (row) => (row.topic === null ? element("strong", {}, "Total of all that are known") : topicLink(row.topic)), value: "topic", kind: "left name" },
      { name: "remote", cell: (row) => bytes(row.remote_bytes), value: "remote_bytes", isKey: true },
      { name: "grows a day", cell: (row) => known(row.growth_bytes_per_day, bytes), value: "growth_bytes_per_day" },
      { name: "a month now", cell: (row) => dollars(row.cost_per_month), value: "cost_per_month", isKey: true },
      ...months.map((number, place) => ({ name: `in ${plural(number, "month")}`,
        cell: (row) => known(row.forecast_cost_per_month[place], dollars), value: (row) => row.forecast_cost_per_month[place] })),
    ], rows, { most, noun: "topics", last: all }));
}
