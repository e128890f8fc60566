"""Transactional ids loaded from compacted logs. Some logs are laid out by hand, others are
compacted by the cleaner."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.transactions.transaction_log import TransactionLog
from isotherm.broker.coordinators.transactions.transaction_records import encode_key, encode_value
from isotherm.broker.coordinators.transactions.transaction_snapshot import transaction_value
from isotherm.broker.coordinators.transactions.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from isotherm.broker.metadata.internal_topics import InternalTopic
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import CorruptMetadataError, CorruptRecordError
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.filtered_batch import filtered_batch
from tests.support.local_log import open_local_log

NOW_MS = 1_700_000_000_000
COMPACTED = TopicConfig(cleanup_policy=("compact",), delete_retention_ms=1000)
STATES = [TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT]


def metadata(name: str, producer_id: int, state: TransactionState) -> TransactionMetadata:
    is_ongoing = state is TransactionState.ONGOING
    return TransactionMetadata(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=producer_id % 7,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset({TopicPartition("t", 1)}) if is_ongoing else frozenset(),
        last_update_ms=NOW_MS,
    )


def batch(name: str, value: TransactionMetadata | None, base_offset: int = 0) -> bytearray:
    encoded = None if value is None else encode_value(transaction_value(value))
    return build_batch(
        [(NOW_MS, encode_key(name), encoded, ())],
        base_offset=base_offset,
        partition_leader_epoch=0,
    )


def open_log(directory: Path, clock: SimClock) -> PartitionLog:
    topic_partition = TopicPartition("__transaction_state", 0)
    log = open_local_log(directory, config=COMPACTED, topic_partition=topic_partition, clock=clock)
    log.update_high_watermark(log.log_end_offset)
    return log


def load(log: PartitionLog) -> dict[str, TransactionMetadata]:
    partitions: Any = SimpleNamespace(find_partition=lambda *_: SimpleNamespace(log=log))
    described = InternalTopic(name="__transaction_state", partitions=1, replication_factor=1)
    nothing: Any = None
    coordinated = CoordinatorTopic(nothing, partitions, nothing, described)
    topic = TransactionLog(TransactionConfig(), coordinated, SimClock())
    return dict(topic.read(0))


def test_log_with_holes_and_empty_batches_is_read_to_its_end(tmp_path: Path) -> None:
    directory = tmp_path / "log" / "__transaction_state-0"
    directory.mkdir(parents=True)
    first = metadata("a", 1, TransactionState.EMPTY)
    last = metadata("a", 2, TransactionState.ONGOING)
    other = metadata("b", 3, TransactionState.COMPLETE_COMMIT)
    gone = batch("c", first, 12)
    segments = {
        0: [batch("a", first, 4), batch("b", other, 9)],
        10: [filtered_batch(gone, frozenset())],
        30: [batch("a", last, 44), batch("b", None, 47)],
        60: [],
    }
    for base_offset, batches in segments.items():
        (directory / f"{base_offset:020}.log").write_bytes(b"".join(batches))
    log = open_log(directory, SimClock())
    assert load(log) == {"a": last}
    log.close()


def written_log(directory: Path, *batches: bytes | bytearray) -> PartitionLog:
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    return open_log(directory, SimClock())


def test_control_batches_hold_no_ids(tmp_path: Path) -> None:
    """Their keys look like those of version 0."""
    first = metadata("a", 1, TransactionState.EMPTY)
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=1,
        partition_leader_epoch=0,
    )
    log = written_log(
        tmp_path / "log" / "__transaction_state-0", batch("a", first), marker, batch("b", first, 2)
    )
    assert set(load(log)) == {"a", "b"}
    log.close()


def test_damaged_batch_is_not_believed(tmp_path: Path) -> None:
    """Its records can be read: only the CRC shows the damage."""
    first = metadata("a", 1, TransactionState.EMPTY)
    log = written_log(tmp_path / "log" / "__transaction_state-0", batch("a", first))
    path = log.segments()[0].log_path
    data = bytearray(path.read_bytes())
    data[17] ^= 1  # in the CRC itself
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="crc"):
        load(log)
    log.close()


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\1", b"\0\x63"])
def test_record_that_cannot_be_read_is_named(tmp_path: Path, value: bytes) -> None:
    first = metadata("a", 1, TransactionState.EMPTY)
    bad = build_batch(
        [(NOW_MS, encode_key("b"), value, ())], base_offset=1, partition_leader_epoch=0
    )
    log = written_log(tmp_path / "log" / "__transaction_state-0", batch("a", first), bad)
    with pytest.raises(CorruptMetadataError, match="partition=__transaction_state-0 offset=1"):
        load(log)
    log.close()


def test_cleaned_log_holds_the_same_ids(tmp_path: Path) -> None:
    rng = random.Random(1)
    clock = SimClock(NOW_MS)
    log = open_log(tmp_path / "log" / "__transaction_state-0", clock)
    cleaner = Cleaner(CleanerConfig(), clock, random.Random(0))
    cleaned_to = 0
    for _ in range(3):
        for _ in range(50):
            name = f"id-{rng.randrange(8)}"
            value = metadata(name, rng.randrange(99), rng.choice(STATES))
            appended = batch(name, value if rng.random() < 0.8 else None)
            log.append_as_leader(appended, 0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        expected = load(log)
        size = sum(segment.size_in_bytes for segment in log.segments())
        part = LogToClean(cleaned_to, log.segments()[-1].base_offset, 0, size, 0)
        cleaned_to = cleaner.clean(
            log, part, throttle=lambda _: None, check_abort=lambda: None
        ).end_offset
        assert sum(segment.size_in_bytes for segment in log.segments()) < size
        assert load(log) == expected
        assert expected
        clock.advance(COMPACTED.delete_retention_ms + 1)
    log.close()
