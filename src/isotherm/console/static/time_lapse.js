// The tier maps as they were at a time of the last day. A slider of minutes, which is also played.

import { element, plural, time } from "./format.js";

const STEP_MS = 60_000;
const FRAMES = 96;
const FRAME_MS = 150;

export class TimeLapse {
  // `load` asks how far back it goes; `draw` shows the maps anew, as of `atMs`, null for now.
  constructor({ load, draw }) {
    Object.assign(this, { load, draw, atMs: null, reach: null, isPlaying: false });
    this.begin = element("button", { type: "button", onclick: () => this.open() }, "Time-lapse of the last day");
    this.slider = element("input", { type: "range", min: 0, step: 1, "aria-label": "Time of the tier maps", oninput: () => this.seek() });
    this.play = element("button", { type: "button", onclick: () => this.press() }, "Play");
    this.shown = element("span", { class: "at" });
    this.row = element("div", { class: "tools lapse", hidden: true }, this.play, this.slider, this.shown,
      element("button", { type: "button", onclick: () => this.toNow() }, "Now"));
    this.said = element("p", { class: "quiet", role: "status" });
    this.element = element("div", { id: "lapse" }, this.begin, this.row, this.said);
  }

  async open() {
    try {
      this.reach = await this.load();
    } catch (error) {
      this.said.textContent = error.message;
      return;
    }
    const { kept_in: topic, since_ms: since, until_ms: until } = this.reach;
    if (since === null) {
      this.said.textContent = topic ? `${topic} has no event of these partitions.` : "No topic of this cluster keeps what has happened.";
      return;
    }
    this.begin.hidden = true;
    this.row.hidden = false;
    this.slider.max = Math.max(1, Math.ceil((until - since) / STEP_MS));
    this.slider.value = this.slider.max;
    this.tell(0);
    this.slider.focus();
  }

  get isAtEnd() {
    return Number(this.slider.value) >= Number(this.slider.max);
  }

  seek() {
    this.atMs = this.isAtEnd ? null : this.reach.since_ms + Number(this.slider.value) * STEP_MS;
    this.tell(0);
    return this.draw();
  }

  toNow() {
    this.isPlaying = false;
    this.slider.value = this.slider.max;
    return this.seek();
  }

  // Of the maps that are shown: `unknown` segments are not on them.
  tell(unknown) {
    if (this.reach === null) return;
    const at = this.atMs === null ? "now" : `${time(this.atMs).slice(0, 16)} UTC`;
    this.shown.textContent = at;
    this.slider.setAttribute("aria-valuetext", at);
    this.said.textContent = this.atMs === null ? ""
      : `What the remote tier had then, by the events in ${this.reach.kept_in}. Which offsets disks had too, nothing has kept.`
        + (unknown ? ` Not shown: ${plural(unknown, "segment")}, since deleted, of which no event that is kept has the offsets.` : "");
  }

  async press() {
    this.isPlaying = !this.isPlaying;
    this.play.textContent = this.isPlaying ? "Pause" : "Play";
    if (this.isPlaying && this.isAtEnd) this.slider.value = 0;
    const step = Math.max(1, Math.round(Number(this.slider.max) / FRAMES));
    while (this.isPlaying && this.element.isConnected) {
      const begun = performance.now();
      await this.seek();
      if (this.isAtEnd) break;
      await new Promise((done) => setTimeout(done, Math.max(0, FRAME_MS - (performance.now() - begun))));
      if (this.isPlaying) this.slider.value = Number(this.slider.value) + step;
    }
    this.isPlaying = false;
    this.play.textContent = "Play";
  }
}
