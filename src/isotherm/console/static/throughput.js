// How much is written to a topic: from the ends of its log at the looks of a page, and from brokers' metrics.

import { bytes, figure, rate } from "./format.js";

// At one look every five seconds these are two minutes.
const LOOKS_MAX = 25;

export class Throughput {
  constructor() {
    this.looks = [];
  }

  note({ read_at_ms: atMs, by_partition: partitions }) {
    const ends = new Map(partitions.filter(({ error }) => !error).map((each) => [each.partition, each.high_watermark]));
    const last = this.looks.at(-1);
    if (last?.atMs === atMs) return;
    // A log that ends earlier is another one: the topic was made anew.
    if (last && [...ends].some(([partition, end]) => end < last.ends.get(partition))) this.looks = [];
    this.looks.push({ atMs, ends });
    if (this.looks.length > LOOKS_MAX) this.looks.shift();
  }

  // Null before the second look. Partitions whose leader did not answer once are left out.
  get offsetsPerSecond() {
    const [first, last] = [this.looks[0], this.looks.at(-1)];
    if (!first || first === last) return null;
    const grown = [...last.ends].reduce((sum, [partition, end]) => sum + (end - (first.ends.get(partition) ?? end)), 0);
    return (1000 * grown) / (last.atMs - first.atMs);
  }

  get seconds() {
    return (this.looks.at(-1).atMs - this.looks[0].atMs) / 1000;
  }

  figures(topic) {
    const offsets = this.offsetsPerSecond;
    const messages = offsets === null ? figure("Messages", "unknown", "until the next look")
      : figure("Messages", `${rate(offsets)}/s`, `offsets, in the last ${Math.round(this.seconds)} s`);
    return [messages, this.#bytes(topic, offsets)];
  }

  #bytes({ traffic, by_partition: partitions }, offsets) {
    const speed = (size) => `${bytes(Math.round(size))}/s`;
    if (traffic) return figure("Written", speed(traffic.bytes_in), `${speed(traffic.bytes_out)} read, by the brokers' metrics`);
    const answered = partitions.filter(({ error }) => !error);
    const local = answered.reduce((sum, each) => sum + each.local_bytes, 0);
    const kept = answered.reduce((sum, each) => sum + each.high_watermark - each.local_log_start_offset, 0);
    if (offsets === null || !kept) return figure("Written", "unknown", offsets === null ? "until the next look" : "no message is local");
    return figure("Written", `about ${speed((offsets * local) / kept)}`, "by the mean size of a local offset");
  }
}
