"""One bad object: whatever it contains, jobs and readers go on, and what is undamaged is read.

The rows are those that the writer of the history kept. An object is altered at random: members of a
manifest are dropped, or become extremes or other types; objects are cut, and their bytes change.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isotherm.errors import UnreadableDataError
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.rewriting.journal import decode_journal
from isotherm.remote.scrub.segment_scrub import SegmentScrubber
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.inventory import (
    DamagedSegment,
    list_segment_objects,
    open_for_reading,
    read_segment,
)
from isotherm.remote.storage.layout.aiven_custom_metadata import (
    AivenCustomMetadata,
    read_custom_metadata,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.segment.offset_index import check_offset_index
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.time_index import read_time_index
from isotherm.segment.transaction_index import read_transaction_index
from tests.support.damaged_history import LENIENT, STRICT
from tests.support.model_history import ModelHistory, Shape, changed, rows
from tests.support.transformed_history import transformed_history

LONG = "9" * 5000
EXTREMES: tuple[Any, ...] = (
    ..., None, True, "", "1", "2", "AAAA", "../..", "a\0b", LONG, -1, 0, 1, 1.5, 40, 2**31 - 1,
    2**31, -(2**63), 2**63 - 1, 2**63, 10**400, float("nan"), [], {}, {"0": 0}, {"9": 2**62},
    {"-1": 0}, {"0": 0, "5": 40}, {"key": "value"}, [[[]]],
)  # fmt: skip
BYTES = (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"version":"1"}', b'{"version":"9"}', bytes(300))
PLACES = st.integers(0, 10**6)


@pytest.fixture(scope="module")
def plain() -> Iterator[ModelHistory]:
    with tempfile.TemporaryDirectory() as folder:
        yield ModelHistory(Path(folder), 4, Shape(segments=4, batches_per_segment=8))


@pytest.fixture(scope="module")
def transformed(tmp_path_factory: pytest.TempPathFactory) -> ModelHistory:
    folder = tmp_path_factory.mktemp("transformed")
    return transformed_history(folder, 3, compressed=True, encrypted=True)


def altered_manifest(manifest: bytes, place: int, value: Any) -> bytes:
    """The member at a place, counted through all levels, is replaced, or dropped if it is `...`."""
    members = json.loads(manifest)
    owner, name = list(_members(members))[place % len(list(_members(members)))]
    if value is ...:
        del owner[name]
    else:
        owner[name] = value
    return json.dumps(members).encode()


def _members(of: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in of.items():
        yield of, name
        if isinstance(value, dict):
            yield from _members(value)


def altered_bytes(content: bytes, place: int, how: int) -> bytes:
    at = place % (len(content) + 1)
    cut, insert, flip, whole = (how + number == 3 for number in range(4))
    if cut:
        return content[:at]
    if insert:
        return content[:at] + random.Random(place).randbytes(9) + content[at:]
    if flip and content:
        at %= len(content)
        return content[:at] + bytes([content[at] ^ 1 << place % 8]) + content[at + 1 :]
    return BYTES[place % len(BYTES)] if whole else content[at:]


def check(history: ModelHistory, path: Path, content: bytes | None, number: int) -> None:
    settings = ObjectStoreSettings.from_config({"url": history.folder.as_uri(), **history.reading})
    with changed(path, content):
        scrubber = SegmentScrubber.of_bucket(settings)
        damaged: set[int] = set()
        for at, (before, segment) in enumerate(pairwise([None, *history.segments])):
            if scrubber.scrub(segment, before).findings:
                damaged.add(at)
        inventory = [
            read_segment(open_for_reading(settings), settings.create_layout(), segment_object)
            for segment_object in list_segment_objects(
                open_for_reading(settings), settings.create_layout()
            )
            if "rsm-manifest" in segment_object.objects
        ]
        segment = history.segments[number]
        for given in ({}, {"isolationLevel": "read_committed"}):
            known = history.committed() if given else history.written
            for mode in (STRICT, LENIENT):
                try:
                    found = rows(history.folder, {**history.reading, **given, **mode})
                except UnreadableDataError:
                    # Without failOnDataLoss: only what contradicts the batches, or hides aborts.
                    continue
                if mode is STRICT:
                    assert found == known
                    continue
                assert set(found) <= set(known)
                assert len(set(found)) == len(found)
                if not given:
                    held = (segment.start_offset, segment.end_offset_inclusive)
                    beside = [row for row in known if not held[0] <= row.offset <= held[1]]
                    assert set(found) >= set(beside)
    assert damaged <= {number, number + 1}
    others = [e for e in inventory if isinstance(e, RemoteLogSegmentMetadata)]
    assert len(others) >= len(history.segments) - 1
    assert len(others) + sum(isinstance(e, DamagedSegment) for e in inventory) == len(inventory)


@settings(max_examples=20)
@given(number=st.integers(0, 3), place=PLACES, value=st.sampled_from(EXTREMES))
@example(number=1, place=0, value="2")
@example(number=1, place=2, value=2**31 - 1)
def test_one_altered_manifest(plain: ModelHistory, number: int, place: int, value: Any) -> None:
    path = plain.objects(plain.segments[number])["rsm-manifest"]
    check(plain, path, altered_manifest(path.read_bytes(), place, value), number)


@settings(max_examples=20)
@given(number=st.integers(0, 2), place=PLACES, value=st.sampled_from(EXTREMES))
def test_one_altered_manifest_of_transformed_segments(
    transformed: ModelHistory, number: int, place: int, value: Any
) -> None:
    path = transformed.objects(transformed.segments[number])["rsm-manifest"]
    check(transformed, path, altered_manifest(path.read_bytes(), place, value), number)


@settings(max_examples=20)
@given(
    number=st.integers(0, 3),
    suffix=st.sampled_from(["log", "indexes", "rsm-manifest"]),
    place=PLACES,
    how=st.integers(0, 4),
)
def test_bytes_of_one_altered_object(
    plain: ModelHistory, number: int, suffix: str, place: int, how: int
) -> None:
    path = plain.objects(plain.segments[number])[suffix]
    check(plain, path, altered_bytes(path.read_bytes(), place, how), number)


@given(st.binary(max_size=40) | st.text(max_size=30).map(lambda key: _custom(key)))
@example(AivenCustomMetadata(object_key="../../etc/passwd").encode() or b"")
@example(AivenCustomMetadata(object_prefix="a\0/").encode() or b"")
def test_any_custom_metadata_is_a_finding(plain: ModelHistory, custom: bytes) -> None:
    settings = ObjectStoreSettings.from_config({"url": plain.folder.as_uri()})
    segment = replace(plain.segments[1], custom_metadata=custom)
    findings = SegmentScrubber.of_bucket(settings).scrub(segment, plain.segments[0]).findings
    try:
        named = read_custom_metadata(custom)
    except UnreadableDataError:
        assert findings
    else:
        is_elsewhere = bool(named.object_prefix or named.object_key)
        assert bool(findings) == is_elsewhere


def _custom(key: str) -> bytes:
    return AivenCustomMetadata(object_key=key.encode("utf-8", "replace").decode()).encode() or b""


@given(st.binary(max_size=300) | st.sampled_from(BYTES))
def test_parsers_raise_one_family(data: bytes) -> None:
    for parse in (
        lambda: check_offset_index(data, 5),
        lambda: read_time_index(data, 5),
        lambda: read_transaction_index(data, 5),
        lambda: read_producer_snapshot(data),
        lambda: read_leader_epoch_checkpoint(data),
        lambda: read_custom_metadata(data),
        lambda: decode_event(data),
        lambda: decode_journal(data),
    ):
        with contextlib.suppress(UnreadableDataError):
            parse()
