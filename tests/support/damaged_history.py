"""Damage to the objects of a model history, and queries that must not return wrong rows.

`FLIPPED` flips random bits. `PLANTED` has damage that no flipped bit makes: valid objects with
correct CRCs and sizes, but other content than the segment's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.errors import IsothermError
from isotherm.record.batch import BatchHeader, iterate_batches
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG, encode_batch
from tests.support.model_history import START_MS, TOPIC, ModelHistory, Row, changed, rows

LOG, INDEXES, MANIFEST = "log", "indexes", "rsm-manifest"
OBJECTS = (LOG, INDEXES, MANIFEST)
STRICT = {"failOnDataLoss": "true"}
LENIENT = {"failOnDataLoss": "false"}

# The new content of a history's objects by path; None for a deleted object.
Changes = dict[Path, bytes | None]


@dataclass(frozen=True, slots=True)
class Question:
    options: Mapping[str, object]
    expected: tuple[Row, ...]

    def wrong_answer(self, folder: Path) -> str | None:
        """What is wrong with a query's answer.

        None if the rows are correct (or fewer, without failOnDataLoss), or if there is a clear
        error. Raises all other exceptions.
        """
        for mode in (STRICT, LENIENT):
            try:
                found = rows(folder, {**self.options, **mode})
            except IsothermError:
                continue
            wanted = list(self.expected)
            is_right = found == wanted or (mode is LENIENT and _is_part(found, wanted))
            if not is_right:
                return (
                    f"options={dict(self.options) | mode} rows={len(found)} expected={len(wanted)}"
                )
        return None


def _is_part(found: list[Row], wanted: list[Row]) -> bool:
    return set(found) <= set(wanted) and len(set(found)) == len(found)


def questions(history: ModelHistory, rng: random.Random, count: int = 2) -> list[Question]:
    """The whole history, small tasks, ranges by offset and by time, committed and uncommitted."""
    asked: list[Question] = []
    for isolation, known in history.by_isolation().items():
        level = {"isolationLevel": isolation, **history.reading}
        asked += [
            Question(level, tuple(known)),
            Question(level | {"minPartitions": 7}, tuple(known)),
        ]
        for _ in range(count):
            start, end = sorted(rng.sample(range(history.end + 1), 2))
            limits = {
                "startingOffsets": json.dumps({TOPIC: {"0": start}}),
                "endingOffsets": json.dumps({TOPIC: {"0": end}}),
            }
            asked.append(Question(level | limits, _between(known, start, end)))
            time = START_MS + rng.randrange(-50, 10 * history.end)
            found = history.first_not_before(time)
            starting = {
                "startingTimestamp": time,
                "startingOffsetsByTimestampStrategy": "latest",
            }
            asked.append(Question(level | starting, _between(known, found, history.end)))
            asked.append(Question(level | {"endingTimestamp": time}, _between(known, 0, found)))
    return asked


def _between(known: list[Row], start: int, end: int) -> tuple[Row, ...]:
    return tuple(row for row in known if start <= row.offset < end)


def flipped_bits(history: ModelHistory, suffix: str, rng: random.Random) -> Iterator[Changes]:
    """An endless sequence of changes that flip one bit of one object."""
    while True:
        path = history.objects(rng.choice(history.segments))[suffix]
        content = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        yield {path: bytes(content)}


@contextmanager
def damage(changes: Changes) -> Iterator[None]:
    with ExitStack() as stack:
        for path, content in changes.items():
            stack.enter_context(changed(path, content))
        yield


def rewritten(
    history: ModelHistory, number: int, rewrite: Callable[[list[bytes]], list[bytes]]
) -> Changes:
    """Other batches, in a log of the size in the manifest."""
    objects = history.objects(history.segments[number])
    log = objects[LOG].read_bytes()
    batches = [
        log[position : position + header.size_in_bytes] for position, header in iterate_batches(log)
    ]
    content = b"".join(rewrite(batches))
    changes: Changes = {objects[LOG]: content}
    return changes | manifest_changed(
        history, number, lambda members: _resize(members, len(content))
    )


def _resize(members: dict[str, Any], size: int) -> None:
    index = members["chunkIndex"]
    index["originalFileSize"] = size
    whole = max(-(-size // index["originalChunkSize"]) - 1, 0)
    index["finalTransformedChunkSize"] = size - whole * index["originalChunkSize"]


def manifest_changed(
    history: ModelHistory, number: int, change: Callable[[dict[str, Any]], None]
) -> Changes:
    """A manifest with other fields."""
    path = history.objects(history.segments[number])[MANIFEST]
    members = json.loads(path.read_bytes())
    change(members)
    return {path: json.dumps(members, separators=(",", ":")).encode()}


def _manifest_with(**fields: object) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        return manifest_changed(
            history, number, lambda m: m["remoteLogSegmentMetadata"].update(fields)
        )

    return plant


def _end_changed_by(change: int) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        end = history.segments[number].end_offset_inclusive + change
        return _manifest_with(endOffset=end)(history, number)

    return plant


def _ends_a_batch_earlier(history: ModelHistory, number: int) -> Changes:
    log = history.objects(history.segments[number])[LOG].read_bytes()
    last = [header.base_offset for _, header in iterate_batches(log)][-1]
    return _manifest_with(endOffset=last - 1)(history, number)


def _epoch_changed_to(epoch: int) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        start = history.segments[number].start_offset
        return _manifest_with(segmentLeaderEpochs={str(epoch): start})(history, number)

    return plant


def _batches_cut(start: int | None, end: int | None) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        def rewrite(batches: list[bytes]) -> list[bytes]:
            lost = set(range(len(batches))[start:end])
            return [batch for index, batch in enumerate(batches) if index not in lost]

        return rewritten(history, number, rewrite)

    return plant


def _first_batch(
    change: Callable[[BatchHeader, bytes], tuple[BatchHeader, bytes]],
) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        def rewrite(batches: list[bytes]) -> list[bytes]:
            ((_, header),) = iterate_batches(batches[0])
            return [bytes(encode_batch(*change(header, batches[0][61:]))), *batches[1:]]

        return rewritten(history, number, rewrite)

    return plant


def _header(
    chosen: Callable[[BatchHeader], bool],
    change: Callable[[BatchHeader], BatchHeader],
    *,
    is_last: bool = False,
) -> Callable[[ModelHistory, int], Changes]:
    """Another header of the first chosen batch, or of the last."""

    def plant(history: ModelHistory, number: int) -> Changes:
        def rewrite(batches: list[bytes]) -> list[bytes]:
            headers = [next(iterate_batches(batch))[1] for batch in batches]
            found = [i for i, header in enumerate(headers) if chosen(header)]
            for at in found[-1:] if is_last else found[:1]:
                batches[at] = bytes(encode_batch(change(headers[at]), batches[at][61:]))
            return batches

        return rewritten(history, number, rewrite)

    return plant


def _is_data(header: BatchHeader) -> bool:
    return not header.is_control


def _is_transactional_data(header: BatchHeader) -> bool:
    return _is_data(header) and bool(header.attributes & TRANSACTIONAL_FLAG)


def _no_transactions(name: str | None) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        def change(members: dict[str, Any]) -> None:
            lost = members["segmentIndexes"].pop("transaction", None)
            if name is not None:
                members["segmentIndexes"][name] = lost

        return manifest_changed(history, number, change)

    return plant


def _swapped(*suffixes: str) -> Callable[[ModelHistory, int], Changes]:
    def plant(history: ModelHistory, number: int) -> Changes:
        one = history.objects(history.segments[number])
        other = history.objects(history.segments[number - 1])
        pairs = [(one[s], other[s]) for s in suffixes] + [(other[s], one[s]) for s in suffixes]
        return {target: source.read_bytes() for target, source in pairs}

    return plant


def _of_another_topic(*suffixes: str) -> Callable[[ModelHistory, ModelHistory, int], Changes]:
    """The objects of the segment of the same number."""

    def plant(history: ModelHistory, other: ModelHistory, number: int) -> Changes:
        own = history.objects(history.segments[number])
        foreign = other.objects(other.segments[number])
        return {own[suffix]: foreign[suffix].read_bytes() for suffix in suffixes}

    return plant


def _replaced(suffix: str, content: bytes | None) -> Callable[[ModelHistory, int], Changes]:
    return lambda history, number: {history.objects(history.segments[number])[suffix]: content}


PLANTED: dict[str, Callable[[ModelHistory, int], Changes]] = {
    "log-ends-three-batches-early": _batches_cut(-3, None),
    "first-batch-cut-out": _batches_cut(0, 1),
    "batch-cut-out-of-the-middle": _batches_cut(4, 5),
    "no-batch-left": _batches_cut(0, None),
    "record-count-of-0": _first_batch(lambda h, payload: (h._replace(records_count=0), payload)),
    "batch-emptied": _first_batch(
        lambda h, _: (h._replace(records_count=0, attributes=h.attributes & ~7), b"")
    ),
    "codec-altered": _header(
        _is_data, lambda h: h._replace(attributes=h.attributes & ~7 | ((h.attributes & 7) + 1) % 5)
    ),
    "codec-unknown": _header(_is_data, lambda h: h._replace(attributes=h.attributes | 7)),
    "transactional-bit-set": _header(
        lambda h: _is_data(h) and h.producer_id < 0,
        lambda h: h._replace(attributes=h.attributes | TRANSACTIONAL_FLAG),
    ),
    "control-bit-set": _header(
        _is_data, lambda h: h._replace(attributes=h.attributes | CONTROL_FLAG)
    ),
    "control-bit-cleared": _header(
        lambda h: h.is_control, lambda h: h._replace(attributes=h.attributes & ~CONTROL_FLAG)
    ),
    "producer-epoch-altered": _header(
        _is_transactional_data, lambda h: h._replace(producer_epoch=h.producer_epoch + 5)
    ),
    "transactional-bit-cleared": _header(
        _is_transactional_data, lambda h: h._replace(attributes=h.attributes & ~TRANSACTIONAL_FLAG)
    ),
    "transactional-bit-of-the-last-cleared": _header(
        _is_transactional_data,
        lambda h: h._replace(attributes=h.attributes & ~TRANSACTIONAL_FLAG),
        is_last=True,
    ),
    "producer-id-unknown": _header(
        _is_transactional_data, lambda h: h._replace(producer_id=h.producer_id + 1000)
    ),
    "producer-id-of-another": _header(
        _is_transactional_data, lambda h: h._replace(producer_id=11 + (h.producer_id - 10) % 3)
    ),
    "base-time-altered": _header(
        _is_data, lambda h: h._replace(base_timestamp=h.base_timestamp - 1000)
    ),
    "largest-time-of-a-batch-altered": _header(
        _is_data, lambda h: h._replace(max_timestamp=h.max_timestamp - 1000)
    ),
    "end-too-high": _end_changed_by(1000),
    "end-too-high-by-one": _end_changed_by(1),
    "end-at-the-limit": _manifest_with(endOffset=2**63 - 1),
    "end-a-batch-too-low": _ends_a_batch_earlier,
    "end-too-low": _end_changed_by(-1),
    "epoch-too-low": _epoch_changed_to(0),
    "epoch-too-high": _epoch_changed_to(9),
    "largest-time-too-low": _manifest_with(maxTimestampMs=START_MS),
    "largest-time-too-high": _manifest_with(maxTimestampMs=2**62),
    "transaction-index-lost": _no_transactions(None),
    "transaction-index-misnamed": _no_transactions("transactioN"),
    "logs-swapped": _swapped(LOG),
    "indexes-swapped": _swapped(INDEXES),
    "manifests-swapped": _swapped(MANIFEST),
    "logs-and-indexes-swapped": _swapped(LOG, INDEXES),
    "log-missing": _replaced(LOG, None),
    "indexes-missing": _replaced(INDEXES, None),
    "log-empty": _replaced(LOG, b""),
    "indexes-empty": _replaced(INDEXES, b""),
    "manifest-empty": _replaced(MANIFEST, b""),
    "manifest-garbage": _replaced(MANIFEST, b"\x00\xff not JSON"),
}
"""Changes by name, to the segment with an index (not 0, if two are swapped)."""

PLANTED_FROM_ANOTHER_TOPIC: dict[str, Callable[[ModelHistory, ModelHistory, int], Changes]] = {
    "log-of-another-topic": _of_another_topic(LOG),
    "indexes-of-another-topic": _of_another_topic(INDEXES),
    "manifest-of-another-topic": _of_another_topic(MANIFEST),
    "log-and-indexes-of-another-topic": _of_another_topic(LOG, INDEXES),
    "log-and-manifest-of-another-topic": _of_another_topic(LOG, MANIFEST),
    "objects-of-another-topic": _of_another_topic(*OBJECTS),
}
"""Changes by name, to the segment with an index, from the history of another topic."""
