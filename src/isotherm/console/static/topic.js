// One topic: the tier map of each partition, and the numbers behind it.

import { quoted, readOnlyNote } from "./commands.js";
import { age, bytes, count, dollars, element, figure, plural, problemList, sizeText, time } from "./format.js";
import { readersCard } from "./groups.js";
import { longName } from "./names.js";
import { fetchJson, topicPath } from "./requests.js";
import { settingsCard } from "./settings.js";
import { table } from "./table.js";
import { Throughput } from "./throughput.js";
import { KINDS, TierMap, wordsOf } from "./tier_map.js";
import { TimeLapse } from "./time_lapse.js";

const PARTITIONS_AT_ONCE = 16;

export function topicPage(name, query) {
  const page = { title: name, isShown: false };
  const maps = new Map(); // by partition
  const throughput = new Throughput();
  const settingsState = { isOpen: false };
  const factsCard = element("section", { class: "facts", "aria-label": "Facts", "aria-live": "polite" });
  // A link to a partition leads to the ones that are shown with it.
  let first = Math.floor(Number(query.get("partition") ?? 0) / PARTITIONS_AT_ONCE) * PARTITIONS_AT_ONCE;
  let reload = null;
  const lapse = new TimeLapse({
    load: () => fetchJson(`${topicPath(name)}/history?partition=${first}&partitions=${PARTITIONS_AT_ONCE}`),
    draw: () => reload(),
  });
  const at = () => (lapse.atMs === null ? "" : `&at=${lapse.atMs}`);

  const columns = () => Math.max(100, Math.min(1600, Math.floor(document.getElementById("main").clientWidth - 60)));

  page.load = async (fetchJson) => {
    const zooms = new Map([...maps].map(([partition, map]) => [partition, map.zooms]));
    const query = `columns=${columns()}&partition=${first}&partitions=${PARTITIONS_AT_ONCE}${at()}`;
    const asked = lapse.atMs;
    const [topic, drawn, settings, readers] = await Promise.all([
      fetchJson(topicPath(name)),
      fetchJson(`${topicPath(name)}/map?${query}`),
      fetchJson(`${topicPath(name)}/configuration`),
      // Where groups may not be listed, the rest of the page is shown.
      fetchJson(`${topicPath(name)}/groups`).catch(({ message }) => ({ groups: null, failure: message })),
    ]);
    // A map that is zoomed in keeps its window.
    await Promise.all(drawn.maps.map(async (map, place) => {
      const window = maps.get(map.partition)?.window;
      if (window) drawn.maps[place] = (await loadWindow(map.partition, window)) ?? map;
    }));
    for (const map of drawn.maps) map.at_ms = asked;
    return { ...topic, ...drawn, sums: topic, settings, readers, zooms, isOvertaken: asked !== lapse.atMs };
  };

  async function loadWindow(partition, window) {
    const place = `columns=${columns()}&partition=${partition}&partitions=1${at()}`;
    const asked = lapse.atMs;
    const range = window ? `&first=${window.first}&end=${window.end}` : "";
    const answer = await fetchJson(`${topicPath(name)}/map?${place}${range}`);
    return answer.maps[0] && { ...answer.maps[0], at_ms: asked };
  }

  async function showFacts(map, cell) {
    const facts = [["shown", `${count(cell.start)} to ${count(cell.end - 1)}`],
      ["state", cell.kinds.map((kind) => wordsOf(kind, map)).join(", ")]];
    if (cell.id) {
      try {
        facts.push(...segmentFacts(await fetchJson(`${topicPath(name)}/partitions/${map.partition}/segments/${cell.id}`)));
      } catch (error) {
        facts.push(["segment", error.message]);
      }
      const place = `partition=${map.partition}&offset=${cell.start}`;
      facts.push(["records", element("a", { href: `#/records/${encodeURIComponent(name)}?${place}` }, "read them")]);
    } else if (cell.segments) {
      facts.push(["segments", `${plural(cell.segments, "segment")} begin here, ${bytes(cell.bytes)}`], ["see them", "zoom in: + or double click"]);
    }
    factsCard.replaceChildren(
      element("header", {}, element("h3", {}, cell.id ? "Segment" : "Offsets"),
        element("div", {}, element("button", { type: "button", onclick: () => factsCard.remove() }, "Close"))),
      element("dl", {}, facts.map(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]).flat()));
    maps.get(map.partition).element.append(factsCard);
  }

  page.show = (main, data, { client_arguments: client }) => {
    const { sums } = data;
    if (!page.isShown) {
      page.isShown = true;
      main.replaceChildren(...longName("h1", name, name),
        element("p", {}, element("a", { href: `#/records/${encodeURIComponent(name)}` }, "Messages")),
        element("div", { id: "problems" }), element("div", { id: "sums" }),
        element("section", { class: "card" }, element("h2", {}, "Tier map"), element("p", { id: "map-problems", class: "bad", hidden: true }), legend(),
          element("p", { class: "quiet" }, "Keys on a bar: ← → moves, + and − zoom, Home and End jump, Enter shows the segment."),
          lapse.element, element("div", { id: "more", class: "tools" }), element("div", { id: "maps" })),
        element("section", { class: "card", id: "partitions" }),
        element("section", { class: "card", id: "readers" }),
        element("section", { class: "card", id: "settings" }),
        readOnlyNote("Produce, alter or delete", `isotherm produce ${quoted(name)} ${client}`, `isotherm topics alter ${quoted(name)} ${client} --config NAME=VALUE`));
    }
    if (data.isOvertaken) return;
    lapse.tell(data.maps.reduce((sum, map) => sum + (map.unknown_segments ?? 0), 0));
    main.querySelector("#problems").replaceChildren(...problemList(sums.problems));
    const causes = main.querySelector("#map-problems");
    causes.textContent = `${sums.problems.map((each) => each.cause).join(", ")}: see above.`;
    causes.hidden = !sums.problems.length;
    throughput.note(sums);
    main.querySelector("#sums").replaceChildren(topicSums(sums, throughput));
    main.querySelector("#partitions").replaceChildren(element("h2", {}, "Partitions"), ...partitions(sums.by_partition));
    main.querySelector("#readers").replaceChildren(...readersCard(data.readers));
    main.querySelector("#settings").replaceChildren(...settingsCard("this topic", data.settings, settingsState));
    const host = main.querySelector("#maps");
    for (const [partition, map] of maps) {
      if (!data.maps.some((each) => each.partition === partition)) {
        map.element.remove();
        maps.delete(partition);
      }
    }
    for (const each of data.maps) {
      if (!maps.has(each.partition)) {
        const made = new TierMap(each.partition, { load: loadWindow, select: showFacts });
        maps.set(each.partition, made);
        host.append(made.element);
      }
      const map = maps.get(each.partition);
      // One that was zoomed meanwhile has another window by now.
      if (map.zooms === (data.zooms.get(each.partition) ?? 0)) map.show(each);
    }
    reload = () => page.load(fetchJson).then((fresh) => page.show(main, fresh, { client_arguments: client }));
    main.querySelector("#more").replaceChildren(...pager(data.partitions));
  };

  function pager(total) {
    if (total <= PARTITIONS_AT_ONCE) return [];
    const turn = (step) => () => {
      first += step;
      reload();
    };
    return [
      element("button", { type: "button", disabled: first === 0, onclick: turn(-PARTITIONS_AT_ONCE) }, "Earlier"),
      element("span", {}, `partitions ${first} to ${Math.min(first + PARTITIONS_AT_ONCE, total) - 1} of ${total}`),
      element("button", { type: "button", disabled: first + PARTITIONS_AT_ONCE >= total, onclick: turn(PARTITIONS_AT_ONCE) }, "Later"),
    ];
  }
  return page;
}

function legend() {
  return element("ul", { class: "legend" }, Object.entries(KINDS).map(([kind, { words, lane }]) =>
    element("li", {}, element("span", { class: `swatch k-${kind}${lane ? " second" : ""}` }), words)));
}

function uncopied(sums) {
  if (!sums.is_tiered) return "not tiered";
  const unseen = sums.problems.some(({ cause }) => cause === "local bytes are unknown") ? "the leader does not show its bytes"
    : "a read replica does not show the leader's bytes";
  const parts = [sums.copy_lag_offsets === null ? unseen : `${count(sums.copy_lag_offsets)} offsets`];
  if (sums.copy_lag_s) parts.push(`newest copy ${age(sums.copy_lag_s)} old`);
  if (sums.copying_segments) parts.push(`${plural(sums.copying_segments, "segment")} being copied since ${age(sums.copying_s)}`);
  return parts.join(" · ");
}

function topicSums(sums, throughput) {
  return element("dl", { class: "figures" },
    throughput.figures(sums),
    figure("In all", bytes(sums.total_bytes), "each byte once"),
    figure("Local", bytes(sums.local_bytes), `${bytes(sums.overlap_bytes)} also remote`),
    figure("Remote", bytes(sums.remote_bytes), plural(sums.remote_segments, "segment")),
    figure("Not copied yet", sizeText(sums.copy_lag_bytes), uncopied(sums)),
    figure("Not deleted yet", bytes(sums.deletion_lag_bytes), `${plural(sums.deletion_lag_segments, "segment")} · ${age(sums.deletion_lag_s)}`),
    figure("Missing", count(sums.missing_offsets), "offsets in no tier", sums.missing_offsets > 0),
    figure("Cost a month", dollars(sums.cost_per_month), "list price of storage"));
}

const lacking = ({ replicas, in_sync_replicas: inSync }) => replicas.filter((each) => !inSync.includes(each));

function partitions(rows) {
  const under = rows.filter((row) => lacking(row).length);
  if (!under.length) return [partitionTable(rows)];
  const numbers = under.slice(0, PARTITIONS_AT_ONCE).map((row) => row.partition).join(", ");
  const more = under.length > PARTITIONS_AT_ONCE ? ` and ${count(under.length - PARTITIONS_AT_ONCE)} more` : "";
  return [element("p", { class: "bad" }, `${plural(under.length, "partition is", "partitions are")} under-replicated: ${numbers}${more}.`), partitionTable(rows)];
}

function inSync(row) {
  const missing = lacking(row);
  if (!missing.length) return row.in_sync_replicas.join(", ");
  return [row.in_sync_replicas.join(", ") || "none", element("strong", { class: "bad" }, ` lacks ${missing.join(", ")}`)];
}

function partitionTable(rows) {
  const number = (name, key, isKey = false) => ({ name, cell: (row) => (key in row ? count(row[key]) : ""), value: key, isKey });
  const size = (name, key, isKey = false) => ({ name, cell: (row) => (key in row ? bytes(row[key]) : ""), value: key, isKey });
  const lag = (name, key) => ({ name, cell: (row) => (row.error ? "" : age(row[key])), value: key });
  return table("Partitions", [
    { name: "partition", cell: (row) => String(row.partition), value: "partition" },
    { name: "leader", cell: (row) => (row.error ? element("span", { class: "bad" }, row.error) : String(row.leader)), value: "leader", kind: "left wraps", isKey: true },
    { name: "replicas", cell: (row) => row.replicas.join(", "), value: (row) => row.replicas.length, kind: "left" },
    { name: "in sync", cell: (row) => element("span", {}, inSync(row)), value: (row) => row.in_sync_replicas.length, kind: "left wraps", isKey: true },
    number("log start", "log_start_offset"),
    number("local start", "local_log_start_offset"),
    number("last tiered", "last_tiered_offset"),
    number("last stable", "last_stable_offset"),
    number("high watermark", "high_watermark"),
    size("local", "local_bytes", true),
    size("remote", "remote_bytes", true),
    size("both", "overlap_bytes"),
    lag("copy lag", "copy_lag_s"),
    lag("deletion lag", "deletion_lag_s"),
  ], rows, { noun: "partitions" });
}

function segmentFacts(segment) {
  const epochs = Object.entries(segment.leader_epochs).map(([epoch, offset]) => `${epoch} from ${count(offset)}`);
  return [
    ["segment", segment.segment_id],
    ["metadata", segment.state],
    ["offsets", `${count(segment.start_offset)} to ${count(segment.end_offset)}`],
    ["size", `${bytes(segment.size_in_bytes)} (${count(segment.size_in_bytes)} bytes)`],
    ["newest record", time(segment.max_timestamp_ms)],
    ["last event", `${time(segment.event_timestamp_ms)}, broker ${segment.broker_id}`],
    ["leader epochs", epochs.join(", ")],
    ["aborted transactions", segment.transaction_index_is_empty ? "none" : "perhaps: it has a transaction index"],
    ["custom metadata", segment.custom_metadata ?? "none"],
    ["objects", segment.objects.join(", ")],
    ["indexes in caches", "not known: no request asks brokers which they keep"],
  ];
}
