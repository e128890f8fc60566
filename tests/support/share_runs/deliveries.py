"""The log of share consumers' deliveries and acknowledgements, and the anomalies in it.

A line has a kind, the consumer, the time in ns of the machine's monotonic clock, and the rest:

    start    c 1000 of group
    got      c 1010 <partition> <offset> <delivery count> <value>
    sent     c 1020 <partition> <offset> ACCEPT|RELEASE|REJECT   before the request
    answered c 1030 <partition> <offset> ok|<error>              after its answer

A consumer is the life of one client: one that starts again has another name. Clients keep records
in buffers, and the application gets them later. And as in Kafka, an acknowledgement of what lies
below the start of the share partition succeeds without effect. So a delivery is only known to be
later than an answer if its consumer began after it, or if no process was killed between, and the
delivery count is higher than any before the answer. To a consumer that began after a release was
answered, the delivery has a higher count than the one that was released.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[int, int]
"""Partition and offset."""

FINAL = frozenset({"ACCEPT", "REJECT"})


class Line(NamedTuple):
    kind: str
    consumer: str
    at_ns: int
    rest: tuple[str, ...]

    @property
    def place(self) -> Place:
        return int(self.rest[0]), int(self.rest[1])


class Got(NamedTuple):
    consumer: str
    at_ns: int
    delivery_count: int
    value: int


class End(NamedTuple):
    """An ACCEPT or REJECT that was answered with success."""

    consumer: str
    answered_ns: int


class Produced(NamedTuple):
    value: int
    at_ns: int
    """Before the record was produced."""


class Release(NamedTuple):
    """A RELEASE that was answered with success, of the delivery with this count."""

    delivery_count: int
    answered_ns: int


@dataclass
class Deliveries:
    """What one group's consumers tell of each record."""

    started_ns: dict[str, int] = field(default_factory=dict)
    got: dict[Place, list[Got]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    ends: dict[Place, list[End]] = field(default_factory=lambda: defaultdict(list))
    releases: dict[Place, list[Release]] = field(default_factory=lambda: defaultdict(list))
    handled_counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How many acknowledgements of each consumer succeeded."""
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    acknowledgements: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How many of each kind succeeded."""


def read_lines(paths: Iterable[Path]) -> list[Line]:
    """All whole lines: a process that was killed may have left a part of one."""
    lines = []
    for path in paths:
        *whole, _ = path.read_text().split("\n")
        for text in whole:
            kind, consumer, at_ns, *rest = text.split()
            lines.append(Line(kind, consumer, int(at_ns), tuple(rest)))
    return lines


def deliveries(lines: Iterable[Line], group_id: str) -> Deliveries:
    found = Deliveries()
    pending: dict[tuple[str, Place], str] = {}
    for line in lines:
        if line.kind == "start":
            if line.rest[-1] == group_id:
                found.started_ns[line.consumer] = line.at_ns
            continue
        if line.consumer not in found.started_ns:
            continue
        place, detail = line.place, line.rest[2]
        if line.kind == "got":
            found.got[place].append(Got(line.consumer, line.at_ns, int(detail), int(line.rest[3])))
        elif line.kind == "sent":
            found.sent[place].add(detail)
            pending[line.consumer, place] = detail
        elif detail != "ok":
            found.errors[detail] += 1
        else:
            kind = pending[line.consumer, place]
            if kind in FINAL:
                found.ends[place].append(End(line.consumer, line.at_ns))
            else:
                count = max(
                    delivery.delivery_count
                    for delivery in found.got[place]
                    if delivery.consumer == line.consumer
                )
                found.releases[place].append(Release(count, line.at_ns))
            found.handled_counts[line.consumer] += 1
            found.acknowledgements[kind] += 1
    return found


def anomalies(
    found: Deliveries,
    produced: Mapping[Place, Produced],
    count_max: int,
    kills_ns: Sequence[int],
) -> list[str]:
    """What contradicts the promises of a share group that has nothing left to deliver.

    `count_max` is the limit of deliveries. A process that is killed, at one of `kills_ns`, may take
    one delivery of a record with it, before that is logged.
    """
    wrong = []
    for place in sorted(produced.keys() | found.got.keys()):
        got = found.got.get(place, [])
        record = produced.get(place)
        wrong += [
            f"{each} partition={place[0]} offset={place[1]} got={got}"
            for each in _of_record(found, place, got, record, count_max, kills_ns)
        ]
    return wrong


def _of_record(
    found: Deliveries,
    place: Place,
    got: Sequence[Got],
    record: Produced | None,
    count_max: int,
    kills_ns: Sequence[int],
) -> Iterator[str]:
    if record is None:
        yield "was not produced"
        return
    if not got:
        yield "never delivered"
        return
    counts = [delivery.delivery_count for delivery in got]
    if any(each.value != record.value for each in got):
        yield "another value"
    if not 1 <= min(counts) <= max(counts) <= count_max:
        yield "delivery count"
    is_ended = bool(found.sent.get(place, set()) & FINAL)
    if not is_ended and max(counts) + len(kills_ns) < count_max:
        yield "gone before the limit of deliveries"
    ends = found.ends.get(place)
    if not ends:
        yield from _fallen_counts(found, place, got)
        return
    end = min(ends, key=lambda each: each.answered_ns)
    yield from _fallen_counts(found, place, [each for each in got if each.at_ns <= end.answered_ns])
    before = max(
        (delivery.delivery_count for delivery in got if delivery.at_ns <= end.answered_ns),
        default=count_max,
    )
    for delivery in got:
        if found.started_ns[delivery.consumer] > end.answered_ns:
            yield f"delivered to a later consumer end={end}"
        is_in_peace = not any(record.at_ns <= kill_ns <= delivery.at_ns for kill_ns in kills_ns)
        if delivery.at_ns > end.answered_ns and delivery.delivery_count > before and is_in_peace:
            yield f"delivered again end={end}"


def _fallen_counts(found: Deliveries, place: Place, got: Sequence[Got]) -> Iterator[str]:
    for release in found.releases.get(place, []):
        for delivery in got:
            is_later = found.started_ns[delivery.consumer] > release.answered_ns
            if is_later and delivery.delivery_count <= release.delivery_count:
                yield f"the delivery count fell release={release}"
