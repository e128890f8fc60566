"""The promise of KIP-534: a reader sees every deletion if it gets from a key's value to the key's
tombstone within delete.retention.ms. It holds at any speed of the reader and for rounds of the
cleaner at any time."""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from isotherm.config.broker import BrokerConfig
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.cleaner.log_cleaner import CleanerWorker, LogCleaner
from isotherm.log.cleaner.offset_map import SLOT_SIZE
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches, read_records
from isotherm.testing.sim_clock import SimClock
from isotherm.types import Offset, TimestampMs, TopicPartition

RETENTION_MS = 100
TOPIC = TopicPartition("keyed", 0)
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    delete_retention_ms=RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
    internal_segment_bytes=250,
    segment_index_bytes=1200,
    segment_ms=2**62,
    index_interval_bytes=1,
    file_delete_delay_ms=0,
)

Value: TypeAlias = bytes | None


class Seen(NamedTuple):
    """The last value that the reader has of a key, and when it read it."""

    value: Value
    read_ms: TimestampMs


class Reader:
    """Reads the log one batch at a time, and keeps the last value of each key."""

    def __init__(self, log: PartitionLog, clock: SimClock) -> None:
        self._log = log
        self._clock = clock
        self.position: Offset = 0
        self.seen: dict[bytes, Seen] = {}
        self.passed_ms: list[tuple[Offset, TimestampMs]] = []
        """The positions reached, and when."""

    def read_batch(self) -> bool:
        """Read the next batch. False at the end of the log."""
        if self.position >= self._log.high_watermark:
            return False
        records = self._log.read(self.position, 1).records
        now_ms = self._clock.now_ms()
        for position, header in iterate_batches(records):
            for record in read_records(records, position, header):
                if record.offset >= self.position:
                    assert record.key is not None
                    self.seen[record.key] = Seen(record.value, now_ms)
            self.position = header.next_offset
        self.passed_ms.append((self.position, now_ms))
        return True

    def passed_at(self, offset: Offset) -> TimestampMs:
        return next(when for position, when in self.passed_ms if position > offset)


class World:
    """A log, its writer, the broker's cleaner and a reader, with one clock."""

    def __init__(self, log: PartitionLog, worker: CleanerWorker, clock: SimClock) -> None:
        self.log = log
        self.clock = clock
        self.reader = Reader(log, clock)
        self.written: dict[bytes, tuple[Offset, Value]] = {}
        self._worker = worker

    def write(self, *records: tuple[bytes, Value]) -> None:
        now_ms = self.clock.now_ms()
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        first = self.log.append_as_leader(batch, 0, now_ms=now_ms).first_offset
        self.log.update_high_watermark(self.log.log_end_offset)
        for index, (key, value) in enumerate(records):
            self.written[key] = (first + index, value)

    def clean(self, *, is_whole: bool = True) -> None:
        """Roll the log, so that all of it is dirty but the new active segment, and clean it.

        With `is_whole=False` the cleaner makes one round, which reaches no further than its offset
        map.
        """
        self.log.roll()
        if is_whole:
            self._worker.run()
        else:
            self._worker.clean_filthiest()
        self.log.delete_marked_files(self.clock.now_ms())

    def missed_stretches(self) -> list[int]:
        """Read to the end and compare with what was written.

        Returns, for each deletion that the reader missed, the time in ms between its reads of the
        value it has and of the tombstone's offset.
        """
        while self.reader.read_batch():
            pass
        stretches = []
        for key, (offset, value) in self.written.items():
            seen = self.reader.seen.get(key)
            if value is None and seen is not None and seen.value is not None:
                stretches.append(self.reader.passed_at(offset) - seen.read_ms)
            else:
                assert (seen.value if seen is not None else None) == value, key
        assert self.reader.seen.keys() <= self.written.keys()
        return stretches


@contextmanager
def opened_world(map_slots: int = 1000) -> Iterator[World]:
    """A world over an empty log. `map_slots` is the size of the cleaner's offset map."""
    clock = SimClock()
    with tempfile.TemporaryDirectory() as directory:
        manager = LogManager(
            [Path(directory)],
            config=BrokerConfig(log_dirs=(Path(directory),)),
            topic_config_for=lambda topic: CONFIG,
            clock=clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        manager.startup()
        log = manager.create_log(TOPIC, uuid.UUID(int=1), CONFIG)
        cleaner = LogCleaner(
            manager.cleaner_manager,
            CleanerConfig(),
            clock=clock,
            make_cleaner=lambda config: Cleaner(
                config, clock, random.Random(0), map_size=map_slots * SLOT_SIZE
            ),
        )
        yield World(log, cleaner.workers[0], clock)
        assert not manager.cleaner_manager.uncleanable_logs(log.log_dir)
        manager.shutdown()


Step: TypeAlias = Callable[[World], object]

KEYS = st.sampled_from([b"a", b"b", b"c"])
RECORDS = st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3)))
WRITES = st.lists(RECORDS, min_size=1, max_size=3).map(lambda r: lambda world: world.write(*r))
READS = st.integers(1, 3).map(
    lambda count: lambda world: [world.reader.read_batch() for _ in range(count)]
)
WAITS = st.sampled_from([1, 30, RETENTION_MS - 1, RETENTION_MS, 2 * RETENTION_MS]).map(
    lambda ms: lambda world: world.clock.advance(ms)
)
CLEANS = st.booleans().map(lambda is_whole: lambda world: world.clean(is_whole=is_whole))
HISTORIES = st.lists(st.one_of(WRITES, WRITES, READS, WAITS, CLEANS), max_size=30)


# A map of two slots uses one: a round ends in the middle of a batch, and the next one continues
# there.
@given(history=HISTORIES, map_slots=st.sampled_from([2, 3, 1000]))
@settings(max_examples=150)
def test_reader_misses_no_deletion_within_the_retention_of_tombstones(
    history: list[Step], map_slots: int
) -> None:
    with opened_world(map_slots) as world:
        for step in history:
            step(world)
        stretches = world.missed_stretches()
        target(float(len(stretches)))
        assert all(stretch >= RETENTION_MS for stretch in stretches)


@pytest.mark.parametrize(
    ("stretch_ms", "missed"), [(RETENTION_MS - 1, []), (RETENTION_MS, [RETENTION_MS])]
)
def test_reader_that_takes_longer_misses_the_deletion(stretch_ms: int, missed: list[int]) -> None:
    """The promise ends exactly at delete.retention.ms."""
    with opened_world() as world:
        world.write((b"a", b"1"))
        world.write((b"a", None))
        world.reader.read_batch()
        world.clean()
        world.clock.advance(stretch_ms)
        world.write((b"b", b"1"))
        world.clean()
        assert world.missed_stretches() == missed


def test_tombstone_beyond_the_offset_map_is_kept_from_the_round_that_reaches_it() -> None:
    """Differs from Kafka, which sets the horizon at once, while the log still has older values of
    the key."""
    with opened_world(map_slots=2) as world:
        world.write((b"a", b"1"), (b"b", b"1"), (b"a", None))
        world.clean(is_whole=False)
        world.clock.advance(RETENTION_MS)
        world.reader.read_batch()
        assert world.reader.seen[b"a"].value is None
        world.reader = Reader(world.log, world.clock)
        world.write((b"c", b"1"))
        world.clean()
        world.write((b"c", b"2"))
        world.clean()
        assert world.missed_stretches() == []
        assert world.reader.seen[b"a"].value is None
