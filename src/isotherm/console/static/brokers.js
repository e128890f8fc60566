// The brokers of the cluster.

import { bytes, element } from "./format.js";
import { table } from "./table.js";

export function brokersPage() {
  const page = { title: "Brokers", isShown: false, load: (fetchJson) => fetchJson("api/overview") };
  page.show = (main, data) => {
    page.isShown = true;
    main.replaceChildren(element("h1", {}, "Brokers"), element("section", { class: "card" }, brokerTable(data)));
  };
  return page;
}

export function brokerTable({ brokers, controller_id: controller }) {
  return table("Brokers", [
    { name: "broker", cell: (row) => `${row.broker_id}${row.broker_id === controller ? " · controller" : ""}`, value: "broker_id" },
    { name: "address", cell: (row) => `${row.host}:${row.port}`, value: (row) => `${row.host}:${row.port}`, kind: "left name" },
    { name: "rack", cell: (row) => row.rack || "", value: "rack", kind: "left" },
    { name: "local, all replicas", cell: (row) => bytes(row.local_bytes), value: "local_bytes", isKey: true },
    { name: "state", cell: (row) => element("span", { class: row.error ? "bad" : null }, row.error || "answers"),
      value: (row) => row.error || "answers", kind: "left wraps", isKey: true },
  ], brokers, { noun: "brokers" });
}
