"""One run from a seed: clients, the cluster and the tasks of a broker in any order, with crashes.

A few partitions share a broker. The driver makes a request, lets time pass, and makes the next one,
while the tasks run. The strategy decides where the process crashes; the next process begins with
the durable state. At the end nothing fails any more: then everything is copied, nothing is left
over, and all records are read.
"""

from __future__ import annotations

import hashlib
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isotherm.config.topic import TopicConfig
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.types import TopicIdPartition
from tests.support.schedules.cooperative import cooperative_threading
from tests.support.schedules.oracle import FINISHED, Expected, Oracle, Violation
from tests.support.schedules.process import (
    SEGMENT_BYTES,
    BrokerProcess,
    Durable,
    MetadataManager,
)
from tests.support.schedules.scheduler import Scheduler, SimulatedThread
from tests.support.schedules.staging import stage_again
from tests.support.schedules.strategies import RandomStrategy

_START_MS = 1_700_000_000_000
_ACTIONS = 14
_PARTITIONS_MAX = 3
_SETTLED_AFTER_S = 60
"""Longer than the time until a state counts as abandoned and the next clean-up has run."""
_FAILING = ("append metadata", "append audit", "put", "get", "delete", "list")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The coverage of a run, for reports and checks."""

    seed: int
    level: int
    points: int
    digest: str
    crashes: Counter[str]
    faults: Counter[str]
    actions: Counter[str]
    checks: int
    emptied: int
    """Segments without a record in the remote tier at the end."""


class RandomRun:
    def __init__(
        self,
        seed: int,
        directory: Path,
        metadata_manager: MetadataManager = TopicBasedRemoteLogMetadataManager,
    ) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self._strategy = RandomStrategy(random.Random(self._rng.getrandbits(64)))
        self.run = Scheduler(self._strategy, _START_MS)
        self._level = self._rng.choice([0, 1, 1, 1])
        self._directory = directory
        self._metadata_manager = metadata_manager
        self._topics = 0
        self._begun: dict[object, SimulatedThread] = {}
        self.actions: Counter[str] = Counter()
        self.compaction_count = 0
        self._weights: dict[Callable[[], None], int] = {
            self.append: 8,
            self.pass_time: 6,
            self.change_retention: 2,
            self.delete_records: 1,
            self.crash: 2,
            self.stop_cleanly: 1,
            self.fail_for_a_while: 2,
            self.remove_topic: 1,
            self.create_topic: 1,
            self.untier: 1,
            self.tier: 3,
            self.compact: 2,
            self.clean: 4,
            self.stop_or_go_on_copying: 1,
            self.raise_level: 1,
            self.compact_metadata: 1,
            self.compact_segment: 1,
        }

    def play(self) -> Outcome:
        """Play the run. Raises Violation, or any other error of the run."""
        with cooperative_threading(self.run), UnexpectedErrors():
            self.durable = Durable.empty(
                self.run, self._directory, self._rng, level=min(self._level, 1)
            )
            self.durable.metadata_manager = self._metadata_manager
            self.oracle = Oracle(self.durable)
            try:
                self._play()
            finally:
                self.run.is_quiet = True
                self._end_process()
        return Outcome(
            self.seed,
            self._level,
            self.run.points,
            self.digest(),
            self.run.crash_points,
            self.durable.faults.injected,
            self.actions,
            self.oracle.checks,
            sum(not segment.segment_size_in_bytes for segment in self.oracle.live().values()),
        )

    def digest(self) -> str:
        return hashlib.sha256(repr(self.run.trace).encode()).hexdigest()

    def _play(self) -> None:
        self._begin_process()
        self.run.is_quiet = False
        self.create_topic()
        self.append()
        for _ in range(_ACTIONS):
            (action,) = self._rng.choices(list(self._weights), list(self._weights.values()))
            self.actions[action.__name__] += 1
            self.run.tell(f"ask {action.__name__}")
            action()
            self._wait(self._rng.choice([0, 0, 0.2, 1, 3, 6]))
        self._settle()

    # ---- the process

    @property
    def process(self) -> BrokerProcess:
        process = self.oracle.process
        assert process is not None
        return process

    def _begin_process(self) -> None:
        """Start a process; repeat after each crash until one runs."""
        while not self._await(self.run.spawn("start", self._start)):
            self._end_process()

    def _await(self, thread: SimulatedThread) -> bool:
        """Wait for a thread; return whether it ended without a crash."""
        return self.run.block(lambda: thread.has_ended, thread.name)

    def _start(self) -> None:
        process = BrokerProcess(self.durable)
        self.oracle.process = process
        self.run.tell("process begins")
        for partition in process.logs:
            self.oracle.note_tiering(partition)
        process.start()

    def _end_process(self) -> None:
        self.run.kill()
        self._begun.clear()
        if self.oracle.process is not None:
            self.oracle.note_starts()
            self.oracle.process.release()
        self.oracle.process = None

    def _wait(self, wait_s: float) -> None:
        """Let the other threads run for a while; start a new process after a crash."""
        self.run.block(lambda: False, "pause", wait_s)
        if self.run.is_crashed:
            self._end_process()
            self._begin_process()

    def _ask(self, key: object, run: Callable[[], None]) -> None:
        """Run a request in a thread of the process, unless the last one of `key` is still
        running.
        """
        last = self._begun.get(key)
        if last is not None and not last.has_ended:
            return

        def ask() -> None:
            with suppress(NotLeaderOrFollowerError):  # the partition was deleted meanwhile
                run()

        self._begun[key] = self.run.spawn(f"client {key}", ask)

    def _any(self, *, tiered: bool = True) -> TopicIdPartition | None:
        found = [
            partition.id
            for partition in self.durable.cluster.partitions.values()
            if partition.config.remote_storage_enable is tiered
            and partition.id in self.process.logs
        ]
        return self._rng.choice(found) if found else None

    # ---- actions

    def append(self) -> None:
        partition = self._any(tiered=self._rng.random() < 0.7)
        if partition is not None:
            count = self._rng.randint(3, 12)
            self._ask(partition.topic_id.int, lambda: self.process.append(partition, count))

    def pass_time(self) -> None:
        self._wait(self._rng.choice([2, 10, 40]))

    def create_topic(self) -> None:
        if len(self.durable.cluster.partitions) >= _PARTITIONS_MAX:
            return
        self._topics += 1
        partition = TopicIdPartition(uuid.UUID(int=self._topics), "flights", 0)
        # Some are compacted first, and tiered later.
        is_compacted = self._rng.random() < 0.3
        config = TopicConfig(
            remote_storage_enable=not is_compacted,
            cleanup_policy=("compact",) if is_compacted else ("delete",),
            internal_segment_bytes=SEGMENT_BYTES,
            index_interval_bytes=1,
            retention_ms=-1,
            file_delete_delay_ms=0,
            local_retention_bytes=self._rng.choice([1, 1, 1, SEGMENT_BYTES * 3]),
        )
        self.oracle.expected[partition] = Expected()
        self._ask("control", lambda: self.process.create(partition, config))

    def remove_topic(self) -> None:
        partition = self._any()
        if partition is not None:
            self._ask("control", lambda: self.process.remove(partition))

    def _change(self, partition: TopicIdPartition, **changes: object) -> None:
        def change() -> None:
            self.process.update_config(partition, **changes)
            self.oracle.note_tiering(partition)

        self._ask("control", change)

    def untier(self) -> None:
        partition = self._any()
        if partition is not None:
            self._change(partition, remote_storage_enable=False)

    def tier(self) -> None:
        partition = self._any(tiered=False)
        if partition is not None:
            self._change(partition, remote_storage_enable=True, cleanup_policy=("delete",))

    def compact(self) -> None:
        """Change the policy. A compacted topic is not tiered; it may be deleted from, too."""
        partition = self._any(tiered=self._rng.random() < 0.3)
        if partition is not None:
            policy = self._rng.choice([("compact",), ("compact",), ("delete",)])
            self._change(partition, remote_storage_enable=False, cleanup_policy=policy)

    def clean(self) -> None:
        """Append to a topic that is not tiered, and clean it if it is compacted."""
        partition = self._any(tiered=False)
        if partition is not None:
            count = self._rng.randint(4, 16)
            self._ask(partition.topic_id.int, lambda: self.process.append(partition, count))
            self._ask("cleaner", lambda: self.process.clean(partition))

    def stop_or_go_on_copying(self) -> None:
        partition = self._any()
        if partition is not None:
            config = self.durable.cluster.partitions[partition].config
            self._change(partition, remote_log_copy_disable=not config.remote_log_copy_disable)

    def change_retention(self) -> None:
        partition = self._any()
        if partition is None:
            return
        limit = self._rng.choice([-1, 2 * SEGMENT_BYTES, 5 * SEGMENT_BYTES])
        expected = self.oracle.expected[partition]
        # The smallest limit so far counts: an expiration may have begun under an earlier one.
        if limit >= 0:
            expected.retention_bytes = min(limit, expected.retention_bytes or limit)
        self._change(partition, retention_bytes=limit)

    def delete_records(self) -> None:
        partition = self._any()
        if partition is None:
            return
        log, expected = self.process.logs[partition], self.oracle.expected[partition]
        before = self._rng.randint(log.log_start_offset, log.high_watermark)
        expected.allowed_start = max(expected.allowed_start, before)
        self._ask("control", lambda: _void(log.maybe_increment_log_start_offset(before)))

    def crash(self) -> None:
        self.run.is_crashed = True
        self._wait(0)

    def stop_cleanly(self) -> None:
        self._await_clients()
        self._await(self.run.spawn("stop", self.process.stop))
        self._end_process()
        self._begin_process()

    def _await_clients(self) -> None:
        self.run.block(lambda: all(each.has_ended for each in self._begun.values()), "clients")

    def fail_for_a_while(self) -> None:
        for kind in self._rng.sample(_FAILING, 2):
            self.durable.faults.begin(kind, self._rng.randint(1, 4))

    def raise_level(self) -> None:
        self.durable.cluster.feature_level = 1

    def compact_metadata(self) -> None:
        if self.durable.cluster.is_compacted:
            self.durable.metadata_topic.compact()

    def compact_segment(self) -> None:
        """Stage a compaction as a job in another process; the job may also end early."""
        partition = self._any()
        if partition is None or not self.durable.cluster.is_compacted:
            return
        segments = [
            each
            for each in self.oracle.live().values()
            if each.topic_id_partition == partition and each.state is FINISHED
        ]
        if segments:
            segment = self._rng.choice(segments)
            # Two jobs may begin at one point, and no two share a journal or a folder.
            self.compaction_count += 1
            name = f"run-{self.compaction_count}"
            folder = self._directory / name

            def job() -> None:
                with suppress(IsothermError):
                    stage_again(self.durable, segment, folder, name)
                self.run.tell(f"staged {segment.start_offset}")

            self.run.spawn("job", job, outside=True)

    # ---- the end

    def _settle(self) -> None:
        self._strategy.is_calm = True
        self.durable.faults.end()
        self._wait(0)
        self._await_clients()
        for partition, hosted in list(self.durable.cluster.partitions.items()):
            final = {
                "retention_bytes": -1,
                "remote_storage_enable": True,
                "cleanup_policy": ("delete",),
                "remote_log_copy_disable": False,
            }
            if any(getattr(hosted.config, name) != value for name, value in final.items()):
                self._change(partition, **final)
                self._await_clients()
        self._wait(_SETTLED_AFTER_S)
        self.run.is_quiet = True
        self.oracle.check_settled()
        if self._level == 1 and not self.compaction_count:
            self.oracle.check_audit()


def _void(_: object) -> None:
    """Drop an answer that is not needed."""


class UnexpectedErrors(logging.Handler):
    """Raises Violation if a task logs an error of its own: no IsothermError or OSError, as
    injected faults cause.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._logger = logging.getLogger("isotherm")
        self._before = (self._logger.level, self._logger.propagate)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or isinstance(error, IsothermError | OSError):
            return
        raise Violation(f"a task failed by itself: {record.getMessage()}") from error

    def __enter__(self) -> None:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False

    def __exit__(self, *raised: object) -> None:
        self._logger.removeHandler(self)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)
