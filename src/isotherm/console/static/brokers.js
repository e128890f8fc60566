// The brokers of the cluster, and one of them: its disks, configuration and errors.

import { quoted, readOnlyNote } from "./commands.js";
import { bytes, count, element, figure, plural, time } from "./format.js";
import { longName, shortName } from "./names.js";
import { settingsCard } from "./settings.js";
import { table } from "./table.js";
import { topicLink } from "./topics.js";

const brokerLink = (id, isController) => element("a", { href: `#/brokers/${id}` }, `${id}${isController ? " · controller" : ""}`);
const marked = (words, isBad) => element("span", { class: isBad ? "bad" : null }, words);

export function brokersPage() {
  const page = { title: "Brokers", isShown: false, load: (fetchJson) => fetchJson("api/brokers") };
  page.show = (main, { brokers }) => {
    page.isShown = true;
    main.replaceChildren(element("h1", {}, "Brokers"), element("section", { class: "card" }, table("Brokers", [
      { name: "broker", cell: (row) => brokerLink(row.broker_id, row.is_controller), value: "broker_id" },
      ADDRESS, RACK,
      { name: "version", cell: release, value: "supported_level", kind: "left wraps" },
      { name: "leads", cell: (row) => count(row.leaders), value: "leaders" },
      { name: "replicas", cell: (row) => count(row.replicas), value: "replicas" },
      { name: "not in sync", cell: (row) => marked(count(row.lagging_replicas), row.lagging_replicas > 0), value: "lagging_replicas" },
      { name: "local", cell: (row) => bytes(row.local_bytes), value: "local_bytes", isKey: true },
      { name: "free", cell: free, value: leastFree, kind: "left wraps", isKey: true },
      { name: "state", cell: (row) => marked(stateOf(row), row.broker_error || offline(row).length), value: stateOf, kind: "left wraps", isKey: true },
    ], brokers, { noun: "brokers" })));
  };
  return page;
}

const ADDRESS = { name: "address", cell: (row) => shortName(`${row.host}:${row.port}`), value: (row) => `${row.host}:${row.port}`, kind: "left name" };
const RACK = { name: "rack", cell: (row) => row.rack || "", value: "rack", kind: "left" };

const offline = ({ log_dirs: dirs }) => dirs.filter(({ error }) => error);
const stateOf = (row) => row.broker_error || (offline(row).length ? `${plural(offline(row).length, "log directory is", "log directories are")} offline` : "answers");
const share = ({ usable_bytes: usable, total_bytes: total }) => (total ? usable / total : null);

function leastFree({ log_dirs: dirs }) {
  const shares = dirs.map(share).filter((each) => each !== null);
  return shares.length ? Math.min(...shares) : null;
}

function free(row) {
  const least = leastFree(row);
  return least === null ? "" : `${Math.floor(100 * least)} %`;
}

function release({ kafka_release: name, supported_level: level }) {
  if (name) return `as Kafka ${name}`;
  return level === null ? "" : `metadata.version ${level}`;
}

// The overview has the brokers, too.
export function brokerTable({ brokers, controller_id: controller }) {
  return table("Brokers", [
    { name: "broker", cell: (row) => brokerLink(row.broker_id, row.broker_id === controller), value: "broker_id" },
    ADDRESS, RACK,
    { name: "local, all replicas", cell: (row) => bytes(row.local_bytes), value: "local_bytes", isKey: true },
    { name: "state", cell: (row) => marked(row.error || "answers", row.error), value: (row) => row.error || "answers", kind: "left wraps", isKey: true },
  ], brokers, { noun: "brokers" });
}

export function brokerPage(name) {
  const page = { title: `Broker ${name}`, isShown: false, load: (fetchJson) => fetchJson(`api/brokers/${encodeURIComponent(name)}`) };
  const settingsState = { isOpen: false };
  page.show = (main, broker) => {
    page.isShown = true;
    const address = `${broker.host}:${broker.port}`;
    main.replaceChildren(element("h1", {}, `Broker ${broker.broker_id}`), ...longName("p", address, address),
      element("dl", { class: "figures" },
        figure("State", stateOf(broker), broker.is_controller ? "controller" : "", Boolean(broker.broker_error || offline(broker).length)),
        broker.rack ? figure("Rack", broker.rack) : null,
        figure("Version", release(broker) || "unknown", levels(broker)),
        figure("Leads", count(broker.leaders), `of ${plural(broker.replicas, "replica")}`),
        figure("Not in sync", count(broker.lagging_replicas), "replicas on this broker", broker.lagging_replicas > 0)),
      element("section", { class: "card", id: "disks" }, element("h2", {}, "Disks"), disks(broker)),
      element("section", { class: "card", id: "errors" }, element("h2", {}, "Errors of the last hour"), errors(broker.errors)),
      element("section", { class: "card", id: "settings" }, settingsCard("this broker", broker, settingsState)),
      readOnlyNote("Change the configuration", `kafka-configs.sh --bootstrap-server ${quoted(address)} --entity-type brokers --entity-name ${broker.broker_id} --alter --add-config NAME=VALUE`));
  };
  return page;
}

const levels = ({ supported_level: supported, cluster_level: now }) =>
  (supported === null ? "it names no metadata.version" : `metadata.version up to ${supported}${now === null ? "" : `, the cluster's is ${now}`}`);

function disks({ log_dirs: dirs, broker_error: error }) {
  if (!dirs.length) return element("p", { class: "quiet" }, error ? "Unknown: the broker does not answer." : "The broker names no log directory.");
  const size = (key) => (row) => (row[key] === null ? "" : bytes(row[key]));
  return table("Disks", [
    { name: "log directory", cell: (row) => row.path, value: "path", kind: "left name" },
    { name: "replicas", cell: size("size_in_bytes"), value: "size_in_bytes" },
    { name: "volume", cell: size("total_bytes"), value: "total_bytes" },
    { name: "usable", cell: size("usable_bytes"), value: "usable_bytes", isKey: true },
    { name: "free", cell: (row) => (share(row) === null ? "" : `${Math.floor(100 * share(row))} %`), value: share, isKey: true },
    { name: "state", cell: (row) => marked(row.error ? `offline: ${row.error}` : "online", row.error), value: (row) => row.error ?? "", kind: "left wraps reason", isKey: true },
  ], dirs, { noun: "directories" });
}

function errors(found) {
  if (found === null) return element("p", {}, "They are in the broker's metrics. Name them with ", element("code", {}, "--metrics"), ".");
  const { since_ms: since, brokers, rows, unanswered } = found;
  const others = brokers.length > 1 ? ` Brokers ${brokers.join(", ")} have this host, and metrics name no broker: these are the errors of all of them.` : "";
  return element("div", {},
    unanswered.map(({ url, reason }) => element("p", { class: "bad" }, `${url} does not answer: ${reason}`)),
    element("p", { class: "quiet" }, since === null ? "No metrics were read yet." : `Counted since ${time(since)}.${others} The broker's log has the reasons.`),
    rows.length ? table("Errors of the broker", [
      { name: "topic", cell: (row) => topicLink(row.topic), value: "topic", kind: "left name" },
      { name: "errors", cell: (row) => row.errors, value: "errors", kind: "left wraps", isKey: true },
      { name: "count", cell: (row) => count(row.count), value: "count", isKey: true },
      { name: "metrics", cell: (row) => row.broker, value: "broker", kind: "left wraps" },
    ], rows) : element("p", {}, "None are counted for this broker's host."));
}
