"""Random histories of a compacted log: appends, rolls and cleanings.

A history depends on its random numbers alone. It keeps every written record, to compare the cleaned
log with them; tests provide the oracle (a model, or Kafka's cleaner).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.choice import LogToClean, plan_log_to_clean
from isotherm.log.cleaner.cleaned_log import CleanedLog
from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import CompressionType, Record
from isotherm.testing.sim_clock import SimClock
from isotherm.types import NO_TIMESTAMP, Offset
from tests.support.compacted_log import CONFIG, CompactedLog

KEYS = ("a", "b", "c", "d", "e", "a key that is longer than any of the others", "")
VALUES = ("1", "a value of some length", "")
TRANSACTIONAL_IDS = (10, 11, 12)
IDEMPOTENT_IDS = (1, 2)
NO_HEADERS_TWICE = ((), (), (("h", b"x"), ("n", None)))


@dataclass(slots=True)
class Written:
    """`committed` is None while the record's transaction is open."""

    record: Record
    batch_base: Offset
    committed: bool | None


class CleaningHistory:
    """`step` writes, rolls or lets time pass. The test calls `clean`."""

    def __init__(
        self,
        directory: Path,
        rng: random.Random,
        *,
        codecs: tuple[CompressionType, ...] = (CompressionType.NONE,),
        map_slots: tuple[int, ...] = (1000,),
    ) -> None:
        self.directory = directory
        self.rng = rng
        self.codecs = codecs
        self.map_slots = rng.choice(map_slots)
        self.read_size = rng.choice([1_000_000, 100, 300])
        self.config: TopicConfig = replace(
            CONFIG,
            delete_retention_ms=rng.choice([0, 1000, 5000]),
            internal_segment_bytes=rng.choice([1_000_000, 700, 400]),
            index_interval_bytes=rng.choice([1, 150, 4096]),
            message_timestamp_type=rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        )
        self.clock = SimClock()
        self.written: dict[Offset, Written] = {}
        self.first_dirty_offset: Offset = 0
        self.log: CompactedLog
        self._epochs = dict.fromkeys((*TRANSACTIONAL_IDS, *IDEMPOTENT_IDS), 0)
        self._sequences: dict[tuple[int, int], int] = {}
        self._open: dict[int, list[Offset]] = {}
        self._actions: dict[Callable[[], None], int] = {
            self._append_plain: 8,
            self._append_idempotent: 3,
            self._append_transactional: 6,
            self._end_transaction: 5,
            self._bump_epoch: 1,
            self._roll: 4,
            self._pass_time: 3,
        }
        self.open()

    def step(self) -> None:
        (action,) = self.rng.choices(list(self._actions), list(self._actions.values()))
        action()

    # The log, and cleaning it

    def open(self, end_offset: Offset = 0) -> None:
        """Create or open the log in the directory, which must be closed."""
        checkpoints = LogCheckpoints(end_offset, 0, end_offset, clean_shutdown=end_offset > 0)
        self.log = CompactedLog(
            self.directory,
            config=self.config,
            clock=self.clock,
            map_slots=self.map_slots,
            read_size=self.read_size,
            checkpoints=checkpoints,
        )

    def reopen(self) -> None:
        self.open(self.close())

    def close(self) -> Offset:
        """The recovery point for the next open."""
        end_offset = self.log.log.log_end_offset
        self.log.log.delete_marked_files(self.clock.now_ms() + self.config.file_delete_delay_ms)
        self.log.log.close()
        return end_offset

    def to_clean(self) -> LogToClean:
        view = self.log.log.view()
        return plan_log_to_clean(view, self.first_dirty_offset, self.config, self.clock.now_ms())

    def clean(self) -> CleanedLog:
        cleaned = self.log.clean(first_dirty_offset=self.first_dirty_offset)
        self.first_dirty_offset = max(self.first_dirty_offset, cleaned.end_offset)
        return cleaned

    # Writes, rolls and the passing of time

    def _append_plain(self) -> None:
        for offset in self._append(None, is_transactional=False):
            self.written[offset].committed = True

    def _append_idempotent(self) -> None:
        producer_id = self.rng.choice(IDEMPOTENT_IDS)
        for offset in self._append(producer_id, is_transactional=False):
            self.written[offset].committed = True

    def _append_transactional(self) -> None:
        producer_id = self.rng.choice(TRANSACTIONAL_IDS)
        offsets = self._append(producer_id, is_transactional=True)
        self._open.setdefault(producer_id, []).extend(offsets)

    def _append(self, producer_id: int | None, *, is_transactional: bool) -> list[Offset]:
        rng = self.rng
        count = rng.choice([1, 1, 2, 3, 5])
        records = [(self._key(producer_id), self._value()) for _ in range(count)]
        producer = None if producer_id is None else (producer_id, self._epochs[producer_id])
        sequence = None if producer is None else self._sequences.get(producer, 0)
        if producer is not None and sequence is not None:
            self._sequences[producer] = sequence + count
        first_offset = self.log.append(
            *records,
            headers=rng.choice(NO_HEADERS_TWICE),
            timestamps=[self._timestamp() for _ in range(count)],
            compression=rng.choice(self.codecs),
            producer=producer,
            sequence=sequence,
            is_transactional=is_transactional,
            leader_epoch=self._leader_epoch(),
        )
        *_, stored = self.log.batches_from(first_offset)
        for record in stored.records:
            self.written[record.offset] = Written(record, first_offset, None)
        return [record.offset for record in stored.records]

    def _leader_epoch(self) -> int:
        latest = self.log.log.leader_epochs.latest
        return (latest.epoch if latest else 0) + (self.rng.random() < 0.1)

    def _key(self, producer_id: int | None) -> str | None:
        if producer_id is None and self.rng.random() < 0.05:
            return None
        return self.rng.choice(KEYS)

    def _value(self) -> str | None:
        return None if self.rng.random() < 0.3 else self.rng.choice(VALUES)

    def _timestamp(self) -> int:
        if self.rng.random() < 0.05:
            return NO_TIMESTAMP
        return self.clock.now_ms() - self.rng.choice([0, 0, 1, 200, 100_000])

    def _end_transaction(self) -> None:
        if not self._open:
            return
        producer_id = self.rng.choice(sorted(self._open))
        committed = self.rng.random() < 0.5
        producer = (producer_id, self._epochs[producer_id])
        if committed:
            self.log.commit(producer)
        else:
            self.log.abort(producer)
        for offset in self._open.pop(producer_id):
            self.written[offset].committed = committed

    def end_transactions(self) -> None:
        """End the open transactions, by commit or abort."""
        while self._open:
            self._end_transaction()

    def _bump_epoch(self) -> None:
        producer_id = self.rng.choice(sorted(self._epochs))
        if producer_id not in self._open:
            self._epochs[producer_id] += 1

    def _roll(self) -> None:
        self.log.log.roll()

    def _pass_time(self) -> None:
        self.clock.advance(self.rng.choice([1, 500, 1000, 6000]))
