"""Scrubs of a real log with transactions and producers: every change under a right CRC is found,
and a sound log has no findings.

Transactions continue from segment to segment, so the content of an index or a snapshot depends on
the segments before too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    build_batch,
    iterate_batches,
    read_batch_header,
)
from isotherm.record.batch_header import encode_batch
from isotherm.record.batch_table import read_batch_table
from isotherm.remote.scrub.findings import Finding
from isotherm.remote.scrub.record_checks import check_records
from isotherm.remote.scrub.segment_scrub import SegmentScrubber
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.manifest.aiven_manifest import read_manifest
from isotherm.segment.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    read_producer_snapshot,
)
from isotherm.segment.transaction_index import TRANSACTION_INDEX_ENTRY_SIZE
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.tier.tier_settings import tier_settings
from isotherm.types import uuid_to_text
from tests.support.model_history import ModelHistory, Shape, changed

LOG_APPEND_TIME = 8


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ModelHistory:
    return ModelHistory(
        tmp_path_factory.mktemp("history"),
        seed=3,
        shape=Shape(segments=6, epochs=(0, 0, 1, 3, 3, 4)),
    )


def scrubber(history: ModelHistory, **settings: bool) -> SegmentScrubber:
    options = parse_options({"path": str(history.folder), "subscribe": "a", "layout": "aiven"})
    return SegmentScrubber.of_bucket(tier_settings(options), **settings)


def scrubbed(history: ModelHistory, number: int) -> list[Finding]:
    previous = history.segments[number - 1] if number else None
    return list(scrubber(history).scrub(history.segments[number], previous).findings)


def index_of(history: ModelHistory, number: int, kind: IndexType) -> tuple[Path, int, bytes]:
    """The object that holds an index, the index's position there, and its bytes."""
    objects = history.objects(history.segments[number])
    place = read_manifest(objects["rsm-manifest"].read_bytes()).indexes.get(kind)
    content = objects["indexes"].read_bytes()
    if place is None:
        return objects["indexes"], 0, b""
    return objects["indexes"], place.position, content[place.position :][: place.size]


def found_with_index(
    history: ModelHistory, number: int, kind: IndexType, index: bytes
) -> list[Finding]:
    path, position, before = index_of(history, number, kind)
    content = bytearray(path.read_bytes())
    content[position : position + len(before)] = index
    with changed(path, bytes(content)):
        return scrubbed(history, number)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_in_what_is_sound(tmp_path: Path, seed: int) -> None:
    sound = ModelHistory(tmp_path, seed)
    for number in range(len(sound.segments)):
        assert scrubbed(sound, number) == []


FIRST_OFFSET, LAST_STABLE_OFFSET = 10, 26


@pytest.mark.parametrize("field", [FIRST_OFFSET, LAST_STABLE_OFFSET])
def test_every_entry_of_a_transaction_index_is_held_against_the_log_and_the_segment_before(
    history: ModelHistory, field: int
) -> None:
    reaches_back = 0
    for number, segment in enumerate(history.segments):
        _, _, index = index_of(history, number, IndexType.TRANSACTION)
        for start in range(0, len(index), TRANSACTION_INDEX_ENTRY_SIZE):
            (stored,) = struct.unpack_from(">q", index, start + field)
            other = bytearray(index)
            struct.pack_into(">q", other, start + field, stored - 1)
            (finding,) = found_with_index(history, number, IndexType.TRANSACTION, bytes(other))
            assert finding.kind == "wrong-transaction-index"
            assert f"_offset={stored - 1} expected={stored}" in finding.detail
            assert finding.segment_id == uuid_to_text(segment.segment_id.id)
            reaches_back += stored < segment.start_offset
    assert reaches_back


def test_aborted_transaction_of_the_segment_before_is_missed(history: ModelHistory) -> None:
    """The transaction's data are in earlier segments; this one has only the marker."""
    missed = 0
    for number, segment in enumerate(history.segments):
        _, _, index = index_of(history, number, IndexType.TRANSACTION)
        for start in range(0, len(index), TRANSACTION_INDEX_ENTRY_SIZE):
            producer, first, marker = struct.unpack_from(">qqq", index, start + 2)
            if first >= segment.start_offset:
                continue
            # Give the entry to a producer that the segment does not have.
            other = bytearray(index)
            struct.pack_into(">q", other, start + 2, 99)
            found = found_with_index(history, number, IndexType.TRANSACTION, bytes(other))
            assert any(
                f"not listed producer_id={producer} first_offset={first} marker={marker}"
                in finding.detail
                for finding in found
            )
            missed += 1
    assert missed


@pytest.mark.parametrize("field", ProducerSnapshotEntry._fields[1:])
def test_every_field_of_a_producer_snapshot_is_held_against_the_log(
    history: ModelHistory, field: str
) -> None:
    wrong = 0
    for number in range(len(history.segments)):
        _, _, snapshot = index_of(history, number, IndexType.PRODUCER_SNAPSHOT)
        entries = read_producer_snapshot(snapshot)
        for at, entry in enumerate(entries):
            stored = getattr(entry, field)
            other = [*entries[:at], entry._replace(**{field: stored + 1}), *entries[at + 1 :]]
            found = found_with_index(
                history, number, IndexType.PRODUCER_SNAPSHOT, encode_producer_snapshot(other)
            )
            # The coordinator of a producer is unknown unless the scrub saw a marker of it.
            if found or field != "coordinator_epoch":
                assert {finding.kind for finding in found} == {"wrong-producer-snapshot"}
                assert f"producer_id={entry.producer_id}" in found[0].detail
                wrong += 1
    assert wrong > len(history.segments)


def a_record_shorter(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, bytes]:
    return header, bytes([payload[0] - 2]) + payload[1:]


def a_count_more(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, bytes]:
    return header._replace(records_count=header.records_count + 1), payload


def a_later_offset(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, bytes]:
    # The size takes at most two bytes here. The attributes and a timestamp delta take two or three.
    at = 1 if payload[0] < 0x80 else 2
    at += 2 if payload[at + 1] < 0x80 else 3
    assert payload[at] == 0
    return header, payload[:at] + b"\x02" + payload[at + 1 :]


def a_later_timestamp(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, bytes]:
    return header._replace(max_timestamp=header.max_timestamp + 1), payload


def another_codec(header: BatchHeader, payload: bytes) -> tuple[BatchHeader, bytes]:
    return header._replace(attributes=header.attributes | CompressionType.GZIP), payload


Change = Callable[[BatchHeader, bytes], tuple[BatchHeader, bytes]]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (a_record_shorter, "wrong-records"),
        (a_count_more, "wrong-records"),
        (a_later_offset, "wrong-records"),
        (a_later_timestamp, "wrong-timestamp"),
        (another_codec, "wrong-records"),
    ],
)
def test_records_are_held_against_their_batch(
    history: ModelHistory, change: Change, kind: str
) -> None:
    number = 2
    log = history.objects(history.segments[number])["log"]
    content = log.read_bytes()
    position, header = next(
        (position, header)
        for position, header in iterate_batches(content)
        if header.compression_type is CompressionType.NONE
        and not header.is_control
        and header.records_count > 1
    )
    end = position + header.size_in_bytes
    batch = bytes(encode_batch(*change(header, content[position + 61 : end])))
    with changed(log, content[:position] + batch + content[end:]):
        found = scrubbed(history, number)
        by_headers = scrubber(history, with_records=False)
        without = by_headers.scrub(history.segments[number], history.segments[number - 1])
    assert kind in {finding.kind for finding in found}
    assert f" position={position} base_offset={header.base_offset}" in found[0].detail
    assert kind not in {finding.kind for finding in without.findings} or kind == "wrong-timestamp"


def test_append_time_is_not_a_records_time(history: ModelHistory) -> None:
    """With LogAppendTime every record has the header's max timestamp."""
    number = 2
    log = history.objects(history.segments[number])["log"]
    content = log.read_bytes()
    batches = [(at, content[at : at + h.size_in_bytes], h) for at, h in iterate_batches(content)]
    stamped = b"".join(
        bytes(encode_batch(h._replace(attributes=h.attributes | LOG_APPEND_TIME), batch[61:]))
        for _, batch, h in batches
    )
    with changed(log, stamped):
        assert scrubbed(history, number) == []


@pytest.mark.parametrize("codec", CompressionType)
def test_one_batch_that_claims_too_many_records_is_named_alone(codec: CompressionType) -> None:
    batches = [
        build_batch([(1, b"k", b"v", ())] * 3, base_offset=base, compression=codec)
        for base in (0, 3, 6)
    ]
    header = read_batch_header(batches[1])
    claims = header._replace(records_count=10**6, last_offset_delta=10**6 - 1)
    batches[1] = encode_batch(claims, batches[1][61:])
    data = memoryview(b"".join(batches))
    (problem,) = check_records(data, read_batch_table(data)[0], 0)
    assert "batch claims more records" in problem.detail
    assert " base_offset=3 " in problem.detail
