// The configuration of a topic or a broker: what was set first, then what is left at its default.

import { element, plural } from "./format.js";
import { table } from "./table.js";

const HIDDEN = "hidden";

// Words as kafka-configs has them, and what they mean to a reader.
const SOURCES = {
  DYNAMIC_TOPIC_CONFIG: "of this topic",
  DYNAMIC_BROKER_CONFIG: "of this broker, set while it runs",
  DYNAMIC_DEFAULT_BROKER_CONFIG: "of all brokers, set while they run",
  STATIC_BROKER_CONFIG: "of the broker's file",
  DEFAULT_CONFIG: "built in",
};

const shown = ({ value, is_sensitive: isSensitive }) => (isSensitive ? HIDDEN : value ?? "");

const NAME = { name: "key", cell: (row) => row.name, value: "name", kind: "left name" };
const VALUE = { name: "value", cell: shown, value: shown, kind: "left wraps", isKey: true };
const SOURCE = { name: "source", value: "source", kind: "left wraps",
  cell: ({ source }) => element("span", { title: source }, source, SOURCES[source] ? element("small", { class: "quiet" }, ` ${SOURCES[source]}`) : "") };
const DEFAULT = { name: "default", cell: (row) => row.default_value ?? "", value: "default_value", kind: "left wraps" };

// `isOpen` is kept by the page, which is made anew with each look.
export function settingsCard(what, { settings, settings_error: error }, state) {
  const changed = settings?.filter((each) => !each.is_default) ?? [];
  const rest = settings?.filter((each) => each.is_default) ?? [];
  return [element("h2", {}, "Configuration"),
    error ? element("p", { class: "bad" }, `The configuration cannot be read${settings ? " now; this is that of before" : ""}. ${error}`) : null,
    settings === null ? null : [
      changed.length ? table(`Set for ${what}`, [NAME, VALUE, SOURCE, DEFAULT], changed, { noun: "settings" })
        : element("p", {}, `Nothing differs from the defaults.`),
      defaults(what, rest, state)]].flat().filter(Boolean);
}

function defaults(what, rest, state) {
  if (!rest.length) return null;
  const box = element("details", { class: "more", open: state.isOpen },
    element("summary", {}, `${plural(rest.length, "setting")} at the default`));
  const fill = () => box.append(table(`Defaults of ${what}`, [NAME, VALUE], rest, { noun: "settings" }));
  if (state.isOpen) fill();
  // Hundreds of rows are made when somebody looks at them.
  box.addEventListener("toggle", () => {
    if (box.open && !state.isOpen) fill();
    state.isOpen = box.open;
  });
  return box;
}
