// Bytes of keys, values and headers as people read them.

export const FORMATS = { auto: "JSON, text or hex", text: "text of the bytes", hex: "hex" };
const HEX_ROW = 16;
const INDENTED_DEPTH_MAX = 40; // deeper values stay readable, and thousands of levels stay small

// `line` is for a cell of a table: on one line. Nothing that JSON has is changed, as numbers would be by parsing.
export function shownAs(content, format) {
  if (content === null) return "null";
  if (content.registered?.text != null && (format === "auto" || format === "line")) {
    const { text, is_cut: isCut } = content.registered;
    return (format === "line" ? text : indented(text)) + (isCut ? "\n… and more" : "");
  }
  const data = Uint8Array.from(atob(content.base64), (letter) => letter.charCodeAt(0));
  const left = content.size - data.length;
  const more = left ? `\n… and ${left} bytes more` : "";
  if (format === "hex") return hexRows(data) + more;
  const text = decoded(data, left > 0);
  if (text === null) return (format === "line" ? hexLine(data.slice(0, 2 * HEX_ROW)) : hexRows(data)) + more;
  if (format === "line") return text.replace(/\s+/g, " ");
  return (format === "auto" && isJson(text) ? indented(text) : text) + more;
}

// Null if it is not UTF-8. A text that was cut off may end within a letter.
function decoded(data, isCut) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: isCut });
  } catch {
    return null;
  }
}

function isJson(text) {
  if (!/^\s*[{[]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// Of sound JSON: only the white space between its tokens is another.
export function indented(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, INDENTED_DEPTH_MAX))}`;
  return json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g).map((token, place, all) => {
    const next = all[place + 1];
    if (token === "{" || token === "[") {
      if (next === "}" || next === "]") return token;
      depth += 1;
      return token + line();
    }
    if (token === "}" || token === "]") {
      if (all[place - 1] === "{" || all[place - 1] === "[") return token;
      depth -= 1;
      return line() + token;
    }
    if (token === ",") return token + line();
    return token === ":" ? ": " : token;
  }).join("");
}

// How a value was read by its schema, or why it was not; empty without a schema.
export function schemaWords(content) {
  if (!content?.registered) return "";
  const { schema_id: id, kind, error } = content.registered;
  return `schema ${id}${kind ? ` (${kind})` : ""}${error ? `: ${error}` : ""}`;
}

const hexLine = (data) => [...data].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

function hexRows(data) {
  const rows = [];
  for (let at = 0; at < data.length; at += HEX_ROW) {
    const row = data.slice(at, at + HEX_ROW);
    const letters = [...row].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "."));
    rows.push(`${at.toString(16).padStart(6, "0")}  ${hexLine(row).padEnd(3 * HEX_ROW)} ${letters.join("")}`);
  }
  return rows.join("\n");
}
