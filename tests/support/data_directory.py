"""A broker's data directory with a topic of every kind, and the records that a broker serves from a
damaged copy.

Topics of two partitions each: plain, compacted, transactional, and tiered (its history only in the
bucket), and the internal topics. Records are read inside the process, without a client: local
batches from the log, others through the remote log manager.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.broker.partitions.partition import Partition
from isotherm.errors import LogDirFailedError, OffsetOutOfRangeError
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import iterate_batches, read_records, verify_batch_crc
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, TopicPartition
from tests.support.conditions import wait_until
from tests.support.tiered_partition import VolatileFileSystem

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "false",
    "num.recovery.threads.per.data.dir": "1",
    "log.retention.check.interval.ms": "3600000",
    "log.initial.task.delay.ms": "3600000",
}
TIMEOUT_S = 300
GROUP = "readers"
_READ_SIZE = 1 << 20

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "transactional": {},
    "tiered": {"remote.storage.enable": "true", "local.retention.bytes": "1"},
}
_SMALL_SEGMENTS = {
    "retention.ms": "-1",
    "segment.index.bytes": "36",
    "index.interval.bytes": "1",
    "file.delete.delay.ms": "0",
}

Content = dict[int, tuple[bytes | None, bytes | None]]
"""Records by offset."""


class Served(NamedTuple):
    log_start_offset: int
    log_end_offset: int
    records: Content
    committed: Content
    """The records that a read_committed consumer gets."""


def write_history(directory: Path, stopped: Path, killed: Path) -> None:
    """Run a broker in `directory`, and copy the directory as after a clean stop and as after `kill
    -9`.

    There are three leader epochs. The last records of each partition are not flushed at the kill.
    """
    for epoch in range(3):
        with started(directory) as broker:
            if epoch == 0:
                _create_topics(broker)
            producers = _producers(broker)
            for number in range(epoch * 4, epoch * 4 + 4):
                _write(producers, number)
            _commit_offsets(broker, epoch)
            _move_to_remote_tier(broker)
            log_manager = broker.node.services.replica_manager._log_manager
            log_manager.flush_closed_segments()
            log_manager.checkpoint()
            if epoch == 2:
                _write(producers, 12)
                shutil.copytree(directory, killed)
    shutil.copytree(directory, stopped)


def _create_topics(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    made = admin.create_topics(
        [NewTopic(name, 2, 1, config={**_SMALL_SEGMENTS, **more}) for name, more in TOPICS.items()]
    )
    for future in made.values():
        future.result(TIMEOUT_S)


class _Producers(NamedTuple):
    """Those of a broker's run. librdkafka takes half a second to begin with each."""

    idempotent: Producer
    transactional: Producer


def _producers(broker: EmbeddedBroker) -> _Producers:
    bootstrap = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    transactional = Producer(
        {**bootstrap, "transactional.id": "writer", "transaction.timeout.ms": 900_000}
    )
    transactional.init_transactions(TIMEOUT_S)
    return _Producers(Producer({**bootstrap, "enable.idempotence": True}), transactional)


def _write(producers: _Producers, number: int) -> None:
    """Write one batch to each partition, and an aborted one to the transactional topic."""
    producer, transactional = producers
    for topic in TOPICS:
        if topic != "transactional":
            for partition in range(2):
                producer.produce(
                    topic, b"%s-%d" % (topic.encode(), number), b"%d" % (number % 3), partition
                )
    assert producer.flush(TIMEOUT_S) == 0
    for outcome in ("aborted", "committed"):
        transactional.begin_transaction()
        for partition in range(2):
            transactional.produce(
                "transactional", b"%s-%d" % (outcome.encode(), number), b"k", partition
            )
        if outcome == "aborted":
            transactional.flush(TIMEOUT_S)
            transactional.abort_transaction(TIMEOUT_S)
        else:
            transactional.commit_transaction(TIMEOUT_S)


def _commit_offsets(broker: EmbeddedBroker, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})
    offsets = [ClientPartition("plain", partition, offset) for partition in range(2)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _move_to_remote_tier(broker: EmbeddedBroker) -> None:
    for index in range(2):
        log = broker.node.services.replica_manager.find_partition("tiered", None, index).log
        wait_until(partial(_is_copied, log), "closed segments are copied")
        log.delete_old_segments(0)
        log.delete_marked_files(1 << 62)


def _is_copied(log: PartitionLog) -> bool:
    return log.highest_offset_in_remote_storage >= log.segments()[-1].base_offset - 1


def serve(broker: EmbeddedBroker) -> dict[TopicPartition, Served | None]:
    """The records that a broker serves of each partition; None for an offline one, or one with
    offline remote metadata."""
    replica_manager = broker.node.services.replica_manager
    served: dict[TopicPartition, Served | None] = {}
    for topic in replica_manager.topics():
        for index in sorted({*topic.partitions, *topic.offline}):
            partition = TopicPartition(topic.name, index)
            try:
                hosted = replica_manager.find_partition(topic.name, None, index)
            except LogDirFailedError:
                served[partition] = None
                continue
            if hosted.log.remote_log_enabled and _is_metadata_offline(broker):
                served[partition] = None
                continue
            served[partition] = Served(
                hosted.log.log_start_offset,
                hosted.log.log_end_offset,
                _read(broker, hosted, FetchIsolation.LOG_END),
                _read(broker, hosted, FetchIsolation.TXN_COMMITTED),
            )
    return served


def _is_metadata_offline(broker: EmbeddedBroker) -> bool:
    replica_manager = broker.node.services.replica_manager
    return any(replica_manager.is_offline(topic, 0) for topic in REMOTE_LOG_METADATA_TOPICS)


def _read(broker: EmbeddedBroker, hosted: Partition, isolation: FetchIsolation) -> Content:
    found: Content = {}
    for buffer, start, aborted in _reads(broker, hosted, isolation):
        for position, header in iterate_batches(buffer):
            verify_batch_crc(buffer, position, header)
            if header.is_control:
                continue
            is_aborted = header.is_transactional and any(
                transaction.producer_id == header.producer_id
                and transaction.first_offset <= header.base_offset <= transaction.last_offset
                for transaction in aborted
            )
            for record in read_records(buffer, position, header):
                if record.offset >= start and not is_aborted:
                    found[record.offset] = (record.key, record.value)
    return found


def _reads(broker: EmbeddedBroker, hosted: Partition, isolation: FetchIsolation) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Read whole batches; yield each buffer with its start offset and aborted transactions."""
    log: PartitionLog = hosted.log
    offset = log.log_start_offset
    end = (
        log.last_stable_offset if isolation is FetchIsolation.TXN_COMMITTED else log.log_end_offset
    )
    while offset < end:
        try:
            read = log.read(offset, _READ_SIZE, isolation=isolation)
            buffer, aborted = read.records, read.aborted_transactions or []
        except OffsetOutOfRangeError:
            if offset >= log.local_log_start_offset:
                raise
            found = _read_remote(broker, hosted, offset, isolation)
            buffer, aborted = memoryview(b"".join(found.records)), found.aborted_transactions or []
        next_offset = offset
        for _, header in iterate_batches(buffer):
            next_offset = header.next_offset
        yield buffer, offset, aborted
        if next_offset <= offset:
            return
        offset = next_offset


def _read_remote(
    broker: EmbeddedBroker, hosted: Partition, offset: int, isolation: FetchIsolation
) -> RemoteRead:
    remote = broker.node.services.remote_log_manager
    assert remote is not None
    partition = hosted.topic_id_partition
    wait_until(lambda: remote.tier.metadata.is_ready(partition), "remote metadata is read")
    return remote.readers.read(
        ReadRequest(
            hosted.log,
            partition,
            offset,
            _READ_SIZE,
            isolation=isolation,
            min_one_message=True,
            wait=ReadWait(),
        )
    ).result(TIMEOUT_S)


@contextlib.contextmanager
def started(directory: Path) -> Iterator[EmbeddedBroker]:
    """A broker without syncs: its files need not survive a power failure."""
    with EmbeddedBroker(directory, SETTINGS, fs=VolatileFileSystem()) as broker:
        yield broker
