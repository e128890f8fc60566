// Tables: sorted by any column, and a list of the values that matter where there is no room.

import { count, element } from "./format.js";

const ROWS_MAX = 500;

// The order that was chosen, by the table's caption: pages are made anew with each look at the cluster.
const orders = new Map();

// Columns are { name, cell, value, kind, isKey }: `cell` makes the text or the element of a row, `value` (a function or a
// field's name) is what the column is sorted by, `kind` is a class, and a phone shows the key columns.
// `last` is a row that stays below the others. At most `most` rows are shown.
export function table(caption, columns, rows, { most = ROWS_MAX, noun = "rows", last = null } = {}) {
  const made = new Map();
  const body = element("tbody", { role: "rowgroup" });
  const note = element("p", { class: "quiet" });
  const head = columns.map((column) => heading(column, () => turn(column)));

  function rowOf(row) {
    if (!made.has(row)) made.set(row, element("tr", { role: "row" }, columns.map((column) => cellOf(column, row))));
    return made.get(row);
  }

  function fill() {
    const order = orders.get(caption);
    const column = columns.find(({ name }) => name === order?.name);
    const shown = (column ? sorted(rows, column, order.isDescending) : rows).slice(0, most);
    body.replaceChildren(...shown.map(rowOf), ...(last ? [rowOf(last)] : []));
    columns.forEach(({ name }, place) => {
      if (name !== column?.name) head[place].removeAttribute("aria-sort");
      else head[place].setAttribute("aria-sort", order.isDescending ? "descending" : "ascending");
    });
  }

  function turn(column) {
    const order = orders.get(caption);
    const begins = rows.some((row) => typeof valueOf(column, row) === "number"); // the largest number first
    if (order?.name !== column.name) orders.set(caption, { name: column.name, isDescending: begins });
    else if (order.isDescending === begins) orders.set(caption, { name: column.name, isDescending: !begins });
    else orders.delete(caption);
    fill();
  }

  fill();
  if (rows.length > most) note.textContent = `${count(most)} of ${count(rows.length)} ${noun}.`;
  const grid = element("table", { "aria-label": caption, role: "table" },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)), body);
  const host = element("div", { class: "rows", tabindex: 0, role: "region", "aria-label": caption }, grid,
    columns.every(({ isKey }, place) => isKey || place === 0) ? null : allValues(grid, caption), rows.length > most ? note : null);
  listWithoutRoom(host, grid);
  return host;
}

// A table that is wider than its place becomes a list of its rows.
function listWithoutRoom(host, grid) {
  let width = -1;
  new ResizeObserver(() => {
    if (host.clientWidth === width) return;
    width = host.clientWidth;
    grid.classList.remove("list");
    grid.classList.toggle("list", grid.scrollWidth > width);
  }).observe(host);
}

// Tables that show all their values, though only the key columns have room.
const whole = new Set();

function allValues(grid, caption) {
  const button = element("button", { type: "button", class: "all-values", onclick: () => {
    if (!whole.delete(caption)) whole.add(caption);
    show();
  } });
  const show = () => {
    grid.classList.toggle("whole", whole.has(caption));
    button.textContent = whole.has(caption) ? "Fewer values" : "All values";
  };
  show();
  return button;
}

function heading({ name, kind, isKey, value }, act) {
  const words = value === undefined ? name : element("button", { type: "button", onclick: act }, name);
  return element("th", { scope: "col", role: "columnheader", class: classOf(kind, isKey) }, words);
}

const cellOf = ({ name, cell, kind, isKey }, row) =>
  element("td", { role: "cell", class: classOf(kind, isKey), "data-label": name }, cell(row));

const classOf = (kind, isKey) => [kind, isKey ? "key" : ""].filter(Boolean).join(" ") || null;

const valueOf = ({ value }, row) => (typeof value === "function" ? value(row) : row[value]);

// What has no value comes last in either order.
function sorted(rows, column, isDescending) {
  const sign = isDescending ? -1 : 1;
  return rows.map((row) => [valueOf(column, row) ?? null, row]).sort(([one], [other]) => {
    if (one === null || other === null) return (one === null) - (other === null);
    if (typeof one === "number" && typeof other === "number") return sign * (one - other);
    return sign * String(one).localeCompare(String(other), "en", { numeric: true });
  }).map(([, row]) => row);
}
