"""Simulates the remote log manager, its tasks, the store and the clock; one seed determines the
schedule.

Three partitions share a manager, and SimThreads runs its work in any order: copies, expirations,
reads, look-ups by time, deletions of whole partitions, and reads of the metadata topic. A partition
may become compacted, be cleaned, and be tiered again. Meanwhile the store and the metadata topic
fail. A consumer's records are compared with the appended ones. At the end all closed
segments are copied and read back, and the scrub finds nothing lost or leaked. A difference is an
AssertionError.

The store fails above obstore (tests.support.faulty_store), or below it, on the wire, when an
S3Stub is given.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import OffsetOutOfRangeError, RequestTimedOutError, RetriableError
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import load_log
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.bucket_scrub import scrub
from tests.support.faulty_store import Fault, Operation
from tests.support.s3_stub import S3Stub, WireFault
from tests.support.sim_threads import SimThreads
from tests.support.tiered_partition import (
    SEGMENT_BYTES,
    TieredPartition,
    VolatileFileSystem,
    clean_closed_segments,
    records_of,
)

_STEPS = 60
_PARTITIONS = 3
_POLL_S = 0.5
_QUIET_S = 100
"""Longer than three runs of every task."""
_FAULTS = [None, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.THROTTLED, Fault.SLOW]
_WIRE_FAULTS = [
    WireFault.RESET_BEFORE,
    WireFault.RESET_MIDWAY,
    WireFault.RESET_UNSTORED,
    WireFault.LOST_REPLY,
    WireFault.SLOW_DOWN,
    WireFault.INTERNAL_ERROR,
    WireFault.FULL,
    WireFault.READ_ONLY,
    WireFault.CLOCK_SKEW,
    WireFault.EXPIRED,
    WireFault.REDIRECTED,
    WireFault.SHORT_BODY,
    WireFault.RESET_MID_BODY,
    WireFault.WRONG_RANGE,
    WireFault.FULL_BODY,
]
"""Wire faults that take no time.

BIT_FLIP is left out: a reader gets an error for damage, and has to retry.
"""
_METHODS = ("PUT", "GET", "DELETE")


def _key_of(offset: int) -> bytes:
    return b"%d" % (offset * offset // 3 % 7)


def _random(seed: float) -> random.Random:
    return random.Random(seed)


class SimulatedPartition:
    def __init__(self, directory: Path, name: str, tiered: TieredPartition, seed: int) -> None:
        fs, rng = VolatileFileSystem(), _random(seed)
        self.config = TopicConfig(
            remote_storage_enable=True,
            internal_segment_bytes=SEGMENT_BYTES,
            index_interval_bytes=1,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.clock = tiered.clock
        folder = directory / f"{name}-0"
        folder.mkdir()
        self.log: PartitionLog = load_log(
            LogEnvironment(FileCache(fs), tiered.clock, rng, remote_storage_system_enable=True),
            PartitionDirectory(LogDir(directory), folder, TopicPartition(name, 0)),
            self.config,
            topic_id=tiered.partition.topic_id,
        )
        self.id = TopicIdPartition(tiered.partition.topic_id, name, 0)
        self.values: list[bytes] = []
        self.removed: set[int] = set()
        """The offsets whose records the cleaner has removed."""

    def append(self, count: int) -> None:
        offsets = range(len(self.values), len(self.values) + count)
        values = [b"%06d" % offset for offset in offsets]
        now_ms = self.clock.now_ms()
        batch: Any = build_batch(
            [
                (now_ms, _key_of(offset), value, ())
                for offset, value in zip(offsets, values, strict=True)
            ]
        )
        self.log.append_as_leader(batch, 0, now_ms=now_ms)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.values += values

    def change(self, **changes: object) -> None:
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]
        self.log.update_config(self.config)

    def delete_local(self) -> None:
        # Local retention never deletes a segment that is not copied.
        self.log.update_config(replace(self.config, local_retention_bytes=0))
        self.log.delete_old_segments(self.clock.now_ms())
        self.log.update_config(self.config)

    def clean(self, rng: random.Random) -> None:
        end_offset = clean_closed_segments(self.log, self.clock, rng)
        newest = {_key_of(offset): offset for offset in range(end_offset)}
        self.removed |= set(range(end_offset)) - set(newest.values())

    def is_copied(self) -> bool:
        last = self.log.segments()[-1].base_offset - 1
        return last in (self.log.highest_offset_in_remote_storage, self.log.log_start_offset - 1)


class Simulation:
    """`tiered` keeps the bucket, the metadata topic and the clock; its own log is not used."""

    def __init__(self, directory: Path, seed: int, stub: S3Stub | None = None) -> None:
        self.rng = _random(seed)
        self.stub = stub
        self.tiered = (
            _TieredOnStub(directory, stub, seed) if stub else TieredPartition(directory, seed=seed)
        )
        self.clock = self.tiered.clock
        self.partitions = [
            SimulatedPartition(directory, f"topic-{number}", self.tiered, seed + number)
            for number in range(_PARTITIONS)
        ]
        self.config = RemoteLogManagerConfig(
            remote_log_manager_copier_thread_pool_size=2,
            remote_log_manager_expiration_thread_pool_size=2,
            remote_log_reader_threads=2,
        )
        self.threads = SimThreads(self.clock, _random(seed))
        self.manager = self._open_manager(directory)
        self.threads.repeat("metadata", self._poll, threading.Event(), self.clock)
        self.reads_checked = 0
        self.events_refused = 0
        self.asked: list[tuple[Future[Any], Callable[[], None]]] = []
        self.refuses_an_event = False
        self.tiered.metadata_topic.before_append = self._before_append
        self.weights: dict[Callable[[], None], int] = {
            self.append: 8,
            self.read: 6,
            self.look_up: 2,
            self.delete_local: 4,
            self.fail_store: 3,
            self.fail_metadata: 1,
            self.change_retention: 1,
            self.resize_pools: 1,
            self.disable_and_enable: 2,
            self.pass_time: 3,
        }
        self.manager.on_leadership_change([partition.log for partition in self.partitions])

    def _open_manager(self, directory: Path) -> RemoteLogManager:
        tiered = self.tiered
        return RemoteLogManager(
            self.config,
            broker_id=0,
            storage=tiered.store,
            metadata=tiered.metadata,
            index_cache=tiered.index_cache,
            pending_deletions=PendingDeletions(directory, VolatileFileSystem()),
            leader_epoch_of=lambda _: 0,
            is_tiered=lambda _: False,
            clock=self.clock,
            rng=_random(self.rng.random()),
            metrics=tiered.metrics,
            threads=self.threads,
        )

    def _poll(self) -> float:
        self.tiered.metadata.poll()
        return _POLL_S

    def _before_append(self, partition: int, value: bytes | None) -> None:
        if self.refuses_an_event and self.rng.random() < 0.5:
            self.refuses_an_event = False
            self.events_refused += 1
            raise RequestTimedOutError("injected")

    def step(self) -> None:
        (action,) = self.rng.choices(list(self.weights), list(self.weights.values()))
        action()
        for _ in range(self.rng.randint(0, 8)):
            self.threads.run_one()
        self.check_answers()

    def any_partition(self) -> SimulatedPartition:
        return self.rng.choice(self.partitions)

    def append(self) -> None:
        partition = self.any_partition()
        for _ in range(self.rng.randint(3, 12)):
            partition.append(self.rng.randint(1, 3))

    def read(self) -> None:
        partition = self.any_partition()
        log = partition.log
        if log.log_start_offset < log.local_log_start_offset:
            self.ask(
                partition, self.rng.randrange(log.log_start_offset, log.local_log_start_offset)
            )

    def ask(self, partition: SimulatedPartition, offset: int) -> None:
        future = self.manager.readers.read(
            ReadRequest(
                partition.log,
                partition.id,
                offset,
                500,
                isolation=FetchIsolation.HIGH_WATERMARK,
                min_one_message=True,
                wait=ReadWait(),
            )
        )
        self.asked.append((future, lambda: self._check_read(partition, offset, future)))

    def _check_read(self, partition: SimulatedPartition, offset: int, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, OffsetOutOfRangeError):
            assert offset < partition.log.log_start_offset, "it was deleted in the meantime"
        elif error is not None:
            assert isinstance(error, RetriableError), error
        else:
            data = memoryview(b"".join(done.result().records))
            found = {
                record.offset: record.value
                for record in records_of(data)
                if record.offset >= offset
            }
            # An empty answer would bring the same request again. A batch without a record does not.
            end_offset = [header.next_offset for _, header in iterate_batches(data)][-1]
            expected = set(range(offset, end_offset)) - partition.removed
            assert found.keys() >= expected, "a read that began before the cleaning may have more"
            assert all(value == partition.values[at] for at, value in found.items())
            self.reads_checked += 1

    def look_up(self) -> None:
        partition = self.any_partition()
        start = partition.log.log_start_offset
        future = self.manager.readers.offset_for_timestamp(partition.log, partition.id, 0, start)

        def check() -> None:
            error = future.exception()
            if error is None:
                found = future.result()
                assert found is None or found.offset >= start
            is_known = isinstance(error, RetriableError | OffsetOutOfRangeError)
            assert error is None or is_known, repr(error)

        self.asked.append((future, check))

    def check_answers(self) -> None:
        done = [(future, check) for future, check in self.asked if future.done()]
        self.asked = [each for each in self.asked if each not in done]
        for _, check in done:
            check()

    def delete_local(self) -> None:
        self.any_partition().delete_local()

    def fail_store(self) -> None:
        if self.stub is not None:
            method, fault = self.rng.choice(_METHODS), self.rng.choice(_WIRE_FAULTS)
            self.stub.fail(fault, method, times=self.rng.randint(1, 3))
            return
        for operation in Operation:
            self.tiered.store.fail_next(operation, *self.rng.choices(_FAULTS, k=2))

    def fail_metadata(self) -> None:
        self.refuses_an_event = True

    def change_retention(self) -> None:
        self.any_partition().change(retention_bytes=self.rng.choice([-1, 2000, 5000]))

    def resize_pools(self) -> None:
        count = self.rng.randint(1, 3)
        self.config = replace(
            self.config,
            remote_log_manager_copier_thread_pool_size=count,
            remote_log_reader_threads=count,
        )
        self.manager.update_config(self.config)

    def disable_and_enable(self) -> None:
        """Disable tiering with deletion (KIP-950) and enable it again; remote-only records are gone
        on purpose. In between the topic may be compacted, and then its log is cleaned."""
        partition = self.any_partition()
        # As ReplicaManager does: the records below exist in the remote tier alone, which is
        # deleted.
        partition.log.maybe_increment_log_start_offset(partition.log.local_log_start_offset)
        partition.change(remote_storage_enable=False)
        self.manager.stop_partitions([partition.id], delete_remote=True)
        for _ in range(self.rng.randint(0, 8)):
            self.threads.run_one()
        if self.rng.random() < 0.5:
            partition.clean(self.rng)
        partition.change(remote_storage_enable=True)
        self.manager.on_leadership_change([partition.log])

    def pass_time(self) -> None:
        self.clock.advance(self.rng.choice([10, 1000, 60_000]))

    def settle(self) -> None:
        """Stop the faults; then all closed segments must be copied, and nothing may be left
        over.
        """
        self.tiered.store.heal()
        if self.stub is not None:
            self.stub.heal()
        self.refuses_an_event = False
        for partition in self.partitions:
            partition.change(retention_bytes=-1)
        until_s = self.clock.monotonic_s() + _QUIET_S
        while self.clock.monotonic_s() < until_s:
            self.threads.run_one()
        self.check_answers()
        assert self.asked == []
        assert [each.is_copied() for each in self.partitions] == [True] * _PARTITIONS
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        for partition in self.partitions:
            segments = self.tiered.metadata.list_remote_log_segments(partition.id)
            assert {segment.state for segment in segments} <= {finished}
            self.read_everything_remote(partition)

    def read_everything_remote(self, partition: SimulatedPartition) -> None:
        partition.delete_local()
        checked = self.reads_checked
        offsets = range(partition.log.log_start_offset, partition.log.local_log_start_offset)
        for offset in offsets:
            self.ask(partition, offset)
            while self.asked:
                self.threads.run_one()
                self.check_answers()
        assert self.reads_checked == checked + len(offsets)

    def trace(self) -> tuple[object, ...]:
        return (
            self.threads.trace,
            self.tiered.store.trace,
            self.tiered.metadata_topic.records(),
            self.clock.monotonic_s(),
        )

    def faults(self) -> Counter[tuple[str, str]]:
        """The number of injected faults, by the fault and the operation that met it."""
        met = Counter({("event_refused", "metadata topic"): self.events_refused})
        if self.stub is None:
            calls = [call for call in self.tiered.store.trace if call.fault is not None]
            return met + Counter(
                (call.fault.value, call.operation.value) for call in calls if call.fault
            )
        return met + Counter((fault.name.lower(), method) for fault, method, _ in self.stub.faults)


class _TieredOnStub(TieredPartition):
    def __init__(self, directory: Path, stub: S3Stub, seed: int) -> None:
        settings = ObjectStoreSettings.from_config({**stub.config, "key.prefix": f"{seed}/"})
        self._stub = stub
        self._prefix = f"{seed}/"
        storage = ObjectStoreRemoteStorageManager(settings)
        super().__init__(directory, storage=storage, seed=seed)

    def objects(self) -> dict[str, bytes]:
        return {
            key: content
            for key, content in self._stub.objects().items()
            if key.startswith(self._prefix)
        }


def simulated(directory: Path, seed: int, stub: S3Stub | None = None) -> Simulation:
    """A simulation played to its end and scrubbed."""
    simulation = Simulation(directory, seed, stub)
    for _ in range(_STEPS):
        simulation.step()
    simulation.settle()
    simulation.manager.close()
    values = [record.value for record in simulation.tiered.metadata_topic.records()]
    assert scrub(simulation.tiered.objects(), values) == []
    return simulation
