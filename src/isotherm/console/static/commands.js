// Commands for a terminal, with a button that copies them.

import { element } from "./format.js";

// In single quotes unless a shell takes it as it is.
export const quoted = (text) => (/^[\w./:=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export function command(text, id = null) {
  const copied = element("span", { role: "status", class: "quiet" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      copied.textContent = "copied";
    } catch {
      copied.textContent = "The browser does not allow it: mark it by hand.";
    }
  };
  return element("div", { class: "tools command" }, element("code", { id }, text),
    element("button", { type: "button", "aria-label": `Copy ${text}`, onclick: copy }, "Copy"), copied);
}

// Where a reader looks for a button that this console does not have.
export function readOnlyNote(what, ...texts) {
  return element("section", { class: "card read-only" }, element("h2", {}, what),
    element("p", { class: "quiet" }, "This console only reads. In a terminal:"), texts.map((text) => command(text)));
}
