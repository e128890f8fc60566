"""Recovery reads many batches at a time. The model applies one batch after the other, as an append
does."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptRecordError
from isotherm.log import batch_scan
from isotherm.log.batch_scan import SoundBatches, scan_sound_batches
from isotherm.log.producer_replay import apply_batches
from isotherm.log.producer_state import ProducerStateManager
from isotherm.record.batch import NewRecord, build_batch, iterate_batches
from isotherm.record.batch_table import read_sound_batches
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.types import TopicPartition

OWNER = TopicPartition("t", 0)
NO_EXPIRATION = 1 << 60


class Step(NamedTuple):
    """`count` batches of one producer, then a marker unless `marker` is None."""

    producer_id: int
    epoch: int
    count: int
    is_transactional: bool
    marker: ControlRecordType | None


steps = st.lists(
    st.builds(
        Step,
        st.integers(-1, 3),
        st.integers(0, 2),
        st.integers(0, 12),
        st.booleans(),
        st.sampled_from([None, ControlRecordType.COMMIT, ControlRecordType.ABORT]),
    ),
    max_size=12,
)


def batches_of(history: list[Step]) -> list[bytes]:
    made: list[bytes] = []
    offset = 0
    for step in history:
        has_id = step.producer_id >= 0
        for number in range(step.count):
            records = [NewRecord(1_000 + offset + n, b"k", b"v" * 5) for n in range(number % 3 + 1)]
            batch = build_batch(
                records,
                base_offset=offset,
                producer_id=step.producer_id,
                producer_epoch=step.epoch if has_id else -1,
                base_sequence=number if has_id else -1,
                is_transactional=step.is_transactional and has_id,
            )
            made.append(bytes(batch))
            offset += len(records)
        if step.marker is not None and has_id:
            made.append(marker(step, offset))
            offset += 1
    return made


def marker(step: Step, offset: int) -> bytes:
    assert step.marker is not None
    return bytes(
        build_end_transaction_marker(
            step.marker,
            base_offset=offset,
            timestamp_ms=2_000 + offset,
            producer_id=step.producer_id,
            producer_epoch=step.epoch,
            coordinator_epoch=offset,
        )
    )


def one_by_one(data: bytes) -> tuple[ProducerStateManager, list[Any]]:
    producers = ProducerStateManager(OWNER, NO_EXPIRATION)
    aborted = [
        producers.apply(header, data, position)
        for position, header in iterate_batches(data)
        if header.has_producer_id
    ]
    return producers, [each for each in aborted if each is not None]


def by_tables(made: list[bytes], cuts: list[int]) -> tuple[ProducerStateManager, list[Any]]:
    producers = ProducerStateManager(OWNER, NO_EXPIRATION)
    aborted: list[Any] = []
    bounds = sorted({0, len(made), *(cut % (len(made) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        data = b"".join(made[start:end])
        batches, _, fault = read_sound_batches(data)
        assert fault is None
        aborted += apply_batches(producers, SoundBatches(0, data, batches))
    return producers, aborted


@given(steps, st.lists(st.integers(0, 200), max_size=4))
def test_producers_are_those_of_all_batches(history: list[Step], cuts: list[int]) -> None:
    made = batches_of(history)
    expected, expected_aborted = one_by_one(b"".join(made))
    found, aborted = by_tables(made, cuts)
    assert aborted == expected_aborted
    assert found.first_unstable_offset == expected.first_unstable_offset
    assert found.snapshot_entries() == expected.snapshot_entries()
    for producer_id in range(4):
        assert found.producer(producer_id) == expected.producer(producer_id)


class MemoryFile:
    """A read-only file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_at(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


@given(steps, st.integers(61, 700), st.data())
def test_sound_batches_end_where_the_first_damage_is(
    history: list[Step], window: int, chosen: st.DataObject
) -> None:
    made = batches_of(history)
    data = bytearray(b"".join(made))
    ends = [sum(map(len, made[:count])) for count in range(len(made) + 1)]
    damaged_at = chosen.draw(st.none() | st.integers(0, max(len(data) - 1, 0)))
    cut = chosen.draw(st.integers(0, len(data)))
    is_cut = chosen.draw(st.booleans())
    if is_cut:
        del data[cut:]
        sound_end = max(end for end in ends if end <= cut)
    elif damaged_at is not None and data:
        data[damaged_at] ^= 1 << chosen.draw(st.integers(0, 7))
        sound_end = max(end for end in ends if end <= damaged_at)
        # The CRC does not cover the base offset and the leader epoch.
        in_batch = damaged_at - sound_end
        if in_batch < 8 or 12 <= in_batch < 16:
            return
    else:
        sound_end = len(data)
    found: list[bytes] = []
    scan = scan_sound_batches(MemoryFile(bytes(data)), len(data))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_scan, "RECOVERY_READ_SIZE", window)
        try:
            for sound in scan:
                assert sound.position == sum(map(len, found))
                for row in sound.batches:
                    at = int(row["position"])
                    found.append(sound.data[at : at + int(row["size"])])
                assert sound.end_position == sum(map(len, found))
            is_whole = True
        except CorruptRecordError:
            is_whole = False
    assert b"".join(found) == bytes(data[:sound_end])
    assert is_whole == (sound_end == len(data))
