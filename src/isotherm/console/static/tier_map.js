// The offsets of one partition as a bar on a canvas. Above what a reader finds, below what is not part of it.
// It is a slider to assistive technology: its value is the stretch of offsets that is chosen.

import { bytes, count, element } from "./format.js";

export const KINDS = {
  local: { words: "only local", lane: 0 },
  both: { words: "in both tiers", lane: 0 },
  remote: { words: "only remote", lane: 0 },
  missing: { words: "missing: in no tier", lane: 0 },
  copying: { words: "being copied", lane: 1 },
  deleting: { words: "being deleted", lane: 1 },
  orphan: { words: "orphan upload", lane: 1 },
};
// Of an earlier time nothing tells what was on disks.
const PAST_WORDS = { remote: "in the remote tier", local: "not in the remote tier yet", missing: "missing: not in the remote tier" };
export const wordsOf = (kind, { at_ms: at }) => (at != null && PAST_WORDS[kind]) || KINDS[kind].words;
// Where several kinds share a stretch, what needs attention is painted last.
const ORDER = ["local", "both", "remote", "deleting", "copying", "orphan", "missing"];
const LANES = [{ top: 12, height: 30 }, { top: 46, height: 12 }];
const ATTENTION_WIDTH_MIN = 3;

const EPOCHS_SHOWN = 5;

function offsetWords(map) {
  const epochs = map.leader_epochs.slice(-EPOCHS_SHOWN).map(([epoch, first]) => `${epoch} from ${count(first)}`);
  const left = map.leader_epochs.length - epochs.length;
  const told = epochs.length ? `leader epochs ${left ? "… " : ""}${epochs.join(", ")}` : "";
  if (map.at_ms !== null) return told;
  return [`log start ${count(map.log_start_offset)}`, `local start ${count(map.local_log_start_offset)}`,
    `last tiered ${map.last_tiered_offset < 0 ? "none" : count(map.last_tiered_offset)}`,
    `last stable ${count(map.last_stable_offset)}`, `high watermark ${count(map.high_watermark)}`, told,
    map.leader_epoch < 0 ? "" : `now ${map.leader_epoch}`].filter(Boolean).join(" · ");
}

export class TierMap {
  constructor(partition, { load, select }) {
    this.partition = partition;
    this.window = null; // null: the whole log
    this.zooms = 0;
    this.load = load;
    this.select = select;
    this.cells = [];
    this.chosen = -1;
    this.title = element("span", { class: "quiet" });
    this.canvas = element("canvas", {
      tabindex: 0, role: "slider", "aria-label": `Offsets of partition ${partition}`, "aria-orientation": "horizontal",
      onkeydown: (event) => this.onKey(event), onpointermove: (event) => this.choose(this.cellAt(event)),
      onclick: (event) => {
        this.choose(this.cellAt(event));
        this.enter();
      }, ondblclick: (event) => this.zoom(0.25, this.offsetAt(event)), onthemechange: () => this.draw(),
    });
    this.ends = element("div", { class: "ends" });
    this.told = element("div", { class: "ends told", "aria-hidden": "true" });
    this.offsets = element("p", { class: "offsets quiet" });
    const button = (words, label, act) => element("button", { type: "button", "aria-label": `${label}, partition ${partition}`, onclick: act }, words);
    this.element = element("section", { class: "map", "aria-label": `Partition ${partition}` },
      element("header", {}, element("h3", {}, `Partition ${partition}`), this.title, element("div", {},
        button("−", "Zoom out", () => this.zoom(4)), button("+", "Zoom in", () => this.zoom(0.25)),
        button("All", "All offsets", () => this.zoom(Infinity)))),
      this.canvas, this.ends, this.told, this.offsets);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  show(map) {
    const before = this.cells[this.chosen];
    this.map = map;
    // By offset, the first lane before the second.
    this.cells = map.lanes.flatMap((cells, lane) => cells.map((cell) => ({ ...cell, lane })))
      .sort((one, other) => one.start - other.start || one.lane - other.lane);
    this.chosen = before
      ? this.cells.findIndex((cell) => cell.start === before.start && cell.lane === before.lane) : -1;
    const { counts } = map;
    const kinds = Object.keys(KINDS).filter((kind) => counts[kind]);
    this.title.textContent = kinds.map((kind) => `${count(counts[kind])} ${wordsOf(kind, map).split(":")[0]}`).join(" · ");
    this.ends.replaceChildren(element("span", {}, count(map.first)), element("span", {}, count(map.end)));
    this.offsets.textContent = offsetWords(map);
    this.canvas.setAttribute("aria-valuemin", map.first);
    this.canvas.setAttribute("aria-valuemax", map.end);
    this.canvas.dataset.cells = this.cells.length;
    this.tell();
    this.draw();
  }

  position(offset) {
    const { first, end } = this.map;
    return ((offset - first) / (end - first)) * this.canvas.clientWidth;
  }

  offsetAt(event) {
    const { first, end } = this.map;
    return first + Math.floor((event.offsetX / this.canvas.clientWidth) * (end - first));
  }

  cellAt(event) {
    const lane = event.offsetY >= LANES[1].top ? 1 : 0;
    const near = (cell) => {
      const left = this.position(cell.start);
      const right = Math.max(this.position(cell.end), left + this.widthMin(cell));
      return cell.lane === lane && event.offsetX >= left && event.offsetX <= right;
    };
    const found = this.cells.map((cell, place) => (near(cell) ? place : -1)).filter((place) => place >= 0);
    const alarming = found.find((place) => this.isAlarming(this.cells[place]));
    return alarming ?? found[0] ?? -1;
  }

  isAlarming(cell) {
    return cell.kinds.includes("missing") || cell.kinds.includes("orphan");
  }

  widthMin(cell) {
    return cell.lane || this.isAlarming(cell) ? ATTENTION_WIDTH_MIN : 0;
  }

  onKey(event) {
    const act = {
      ArrowRight: () => this.choose(Math.min(this.chosen + 1, this.cells.length - 1)),
      ArrowLeft: () => this.choose(Math.max(this.chosen - 1, 0)),
      Home: () => this.choose(0),
      End: () => this.choose(this.cells.length - 1),
      Enter: () => this.enter(),
      " ": () => this.enter(),
      "+": () => this.zoom(0.25),
      "=": () => this.zoom(0.25),
      "-": () => this.zoom(4),
      Escape: () => this.zoom(Infinity),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  choose(place) {
    if (place === this.chosen) return;
    this.chosen = place;
    this.tell();
    this.draw();
  }

  enter() {
    const cell = this.cells[this.chosen];
    if (cell) this.select(this.map, cell);
  }

  async zoom(factor, around = this.middle()) {
    const { log_first: low, log_end: high, first, end } = this.map;
    const width = Math.max(1, Math.round((end - first) * factor));
    if (width >= high - low) this.window = null;
    else {
      const from = Math.max(low, Math.min(around - Math.floor(width / 2), high - width));
      this.window = { first: from, end: from + width };
    }
    const mine = ++this.zooms;
    try {
      const map = await this.load(this.partition, this.window);
      if (map && mine === this.zooms) this.show(map);
    } catch (error) {
      this.told.textContent = error.message;
    }
  }

  middle() {
    const cell = this.cells[this.chosen];
    return cell ? Math.floor((cell.start + cell.end) / 2) : Math.floor((this.map.first + this.map.end) / 2);
  }

  tell() {
    const cell = this.cells[this.chosen];
    const words = cell
      ? `${count(cell.start)} to ${count(cell.end - 1)} · ${cell.kinds.map((kind) => wordsOf(kind, this.map)).join(", ")}`
        + (cell.segments ? ` · ${cell.id ? "segment" : `${count(cell.segments)} segments`}, ${bytes(cell.bytes)}` : "")
      : "nothing is chosen";
    this.canvas.setAttribute("aria-valuenow", cell ? cell.start : this.map.first);
    this.canvas.setAttribute("aria-valuetext", words);
    this.told.textContent = cell ? words : "\u00a0";
  }

  draw() {
    const { canvas, map } = this;
    if (!map || !canvas.clientWidth) return;
    const scale = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    context.fillStyle = colour("empty");
    for (const { top, height } of LANES) context.fillRect(0, top, canvas.clientWidth, height);
    for (const kind of ORDER) {
      context.fillStyle = colour(kind);
      for (const cell of this.cells) if (cell.kinds.includes(kind)) this.drawCell(context, cell, kind);
    }
    this.drawBorders(context, colour("card"));
    this.drawMarks(context, colour);
    this.drawChosen(context, colour("text"));
  }

  drawCell(context, cell, kind) {
    const { top, height } = LANES[cell.lane];
    // Whole pixels: the edges of half covered ones would show as stripes.
    const left = Math.floor(this.position(cell.start));
    const width = Math.max(Math.ceil(this.position(cell.end)) - left, this.widthMin(cell));
    // A missing stretch is also higher: colour alone must not tell.
    const more = kind === "missing" ? 5 : 0;
    context.fillRect(left, top - more, width, height + more);
  }

  drawBorders(context, colour) {
    context.fillStyle = colour;
    for (const cell of this.cells) {
      const left = this.position(cell.start);
      const { top, height } = LANES[cell.lane];
      if (cell.id && this.position(cell.end) - left > 4) context.fillRect(left, top, 1, height);
    }
  }

  drawMarks(context, colour) {
    const { local_log_start_offset: local, log_start_offset: start, high_watermark: end, last_stable_offset: stable, at_ms: at } = this.map;
    const isInside = (offset) => offset >= this.map.first && offset <= this.map.end;
    const left = (offset) => Math.min(Math.max(this.position(offset), 0), context.canvas.clientWidth - 1);
    context.fillStyle = colour("quiet");
    for (const [, offset] of this.map.leader_epochs) {
      if (isInside(offset)) context.fillRect(left(offset), LANES[0].top + LANES[0].height, 1, LANES[1].top - LANES[0].top - LANES[0].height);
    }
    context.fillStyle = colour("text");
    context.font = "10px system-ui, sans-serif";
    const marks = [[start, ""], [local, at === null ? "local start" : ""], [end, ""]];
    if (stable < end) marks.push([stable, "last stable"]);
    for (const [offset, words] of marks) {
      if (!isInside(offset)) continue;
      context.fillRect(left(offset), 6, 1, LANES[0].height + 6);
      if (!words || left(offset) < 70 || context.canvas.clientWidth - left(offset) < 90) continue;
      context.fillText(words, left(offset) + 4, 9);
    }
  }

  drawChosen(context, colour) {
    const cell = this.cells[this.chosen];
    if (!cell) return;
    const { top, height } = LANES[cell.lane];
    const left = this.position(cell.start);
    const width = Math.max(this.position(cell.end) - left, this.widthMin(cell));
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(left, top - 1, width, height + 2);
  }
}
