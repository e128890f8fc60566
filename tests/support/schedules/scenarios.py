"""Every schedule of a few concurrent threads, within a bound and with at most one crash.

A scenario has concurrent threads that start from a prepared state, and threads for the process
after a crash. Only the points that a scenario names count: durable accesses, and the locks that its
threads share. Afterwards the tasks run one after the other until nothing is left to do, and the
oracle checks everything.
"""

from __future__ import annotations

import gc
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isotherm.config.topic import TopicConfig
from isotherm.errors import IsothermError
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.tasks.cleanup import RemoteMetadataCleanupManager, TierCleanupTarget
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.remote.tasks.local_deletion import RemoteCopiesOfLog
from isotherm.types import TopicIdPartition
from tests.support.schedules.cooperative import cooperative_threading
from tests.support.schedules.durable import HostedPartition
from tests.support.schedules.oracle import Expected, Oracle
from tests.support.schedules.process import (
    SEGMENT_BYTES,
    BrokerProcess,
    Durable,
    MetadataManager,
)
from tests.support.schedules.random_runs import UnexpectedErrors
from tests.support.schedules.scheduler import Decision, Scheduler, SimulatedThread
from tests.support.schedules.staging import KEEP_OLD_MS, stage_again
from tests.support.schedules.strategies import Exploration, ListedChoices

PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)
_START_MS = 1_700_000_000_000
DURABLE = ("append", "put", "delete", "rename", "write", "checkpoint")
RUNS_PER_COLLECTION = 50
_PROGRAM = "python -m tests.support.schedules"
SHARED = ("lock metadata partition", "lock log", "lock reader")


class World:
    """One partition and its tasks;

    `task` returns the same task of a kind during a process's life.
    """

    def __init__(self, run: Scheduler, directory: Path, manager: MetadataManager, level: int):
        self.run = run
        self.durable = Durable.empty(run, directory, random.Random(0), level=level)
        self.durable.metadata_manager = manager
        self.oracle = Oracle(self.durable)
        config = TopicConfig(
            remote_storage_enable=True,
            internal_segment_bytes=SEGMENT_BYTES,
            index_interval_bytes=1,
            retention_ms=-1,
            file_delete_delay_ms=0,
            local_retention_bytes=1,
        )
        self.durable.cluster.partitions[PARTITION] = HostedPartition(PARTITION, config)
        self.oracle.expected[PARTITION] = Expected()
        self.begin()

    @property
    def process(self) -> BrokerProcess:
        assert self.oracle.process is not None
        return self.oracle.process

    def begin(self) -> None:
        """Start a process that has not read its metadata yet."""
        process = self.oracle.process = BrokerProcess(self.durable)
        process.metadata.on_partition_leadership_changes([PARTITION], ())
        log, tier = process.logs[PARTITION], process.manager.tier
        log.remote_copies = RemoteCopiesOfLog(log, PARTITION, tier)
        self.copy_task: CopyTask = process.copy_task(PARTITION)
        self.expiration_task: ExpirationTask = process.expiration_task(PARTITION)
        topic: Any = self.durable.metadata_topic
        self.cleanup_manager = RemoteMetadataCleanupManager(
            topic,
            TierCleanupTarget(
                process.manager.tier,
                process.metadata,
                lambda _: Future(),
                leads=lambda _: True,
                keeps=lambda _: True,
                is_alone=True,
            ),
            TopicBasedSettings(remote_log_metadata_cleanup_grace_ms=0),
            clock=process.clock,
            metrics=process.metrics,
        )

    # ---- threads

    def read(self) -> None:
        self.process.metadata.poll()

    def follow(self) -> None:
        """Read the metadata as `read` does, and then continuously until the process ends."""
        self.process.metadata.start()

    def copy(self) -> None:
        self.copy_task.run()

    def expire(self) -> None:
        self.expiration_task.run()

    def expire_after_a_failure(self) -> None:
        """A copy that fails at its first object. The next run plans it again."""
        self.durable.faults.fail_next("delete")
        with suppress(IsothermError):
            self.expire()
        self.expire()

    def retain_locally(self) -> None:
        self.process.delete_old_segments()

    def copy_and_retain_locally(self) -> None:
        self.copy()
        self.retain_locally()

    def clean_up(self) -> None:
        self.run.now_ms += 1  # nothing is too young then
        self.cleanup_manager.run()

    def migrate(self) -> None:
        self.is_migrated = True
        self.durable.cluster.feature_level = 1
        self.process.upgrade.run()

    def finish_compaction(self) -> None:
        self.process.finish_compactions()

    def finish_as_deposed(self) -> None:
        """Let a deposed broker publish the same runs, and clean up after them."""
        deposed = self.process.deposed_leader(PARTITION)
        deposed.run()
        self.run.now_ms += KEEP_OLD_MS
        deposed.run()

    def compact_again(self) -> None:
        """The next job begins when the first run is over."""
        self.finish_compaction()
        self.run.now_ms += KEEP_OLD_MS
        self.finish_compaction()
        self.stage("again")
        self.finish_compaction()

    def remove_topic(self) -> None:
        self.process.remove(PARTITION)

    def untier(self) -> None:
        self.process.update_config(PARTITION, remote_storage_enable=False)
        self.oracle.note_tiering(PARTITION)

    # ---- prepared states

    def append(self, count: int = 4) -> None:
        self.process.append(PARTITION, count)

    def limit_size(self, limit: int) -> None:
        self.oracle.expected[PARTITION].retention_bytes = limit
        self.process.update_config(PARTITION, retention_bytes=limit)

    def delete_records(self, before: int) -> None:
        self.oracle.expected[PARTITION].allowed_start = before
        self.process.logs[PARTITION].maybe_increment_log_start_offset(before)

    def stage(self, run: str = "run") -> None:
        first = self.process.metadata.list_remote_log_segments(PARTITION)[0]
        stage_again(self.durable, first, self.durable.directory / "job", run)

    def settle(self) -> None:
        """Run every task in turn, repeatedly, until nothing changes."""
        works = (self.read, self.copy, self.expire, self.retain_locally, self.clean_up)
        for _ in range(4):
            for work in works:
                with suppress(IsothermError, OSError):
                    work()
            self.finish_compaction()
            self.run.block(lambda: False, "settle", 40)
        self.oracle.check_settled()
        if self.durable.cluster.is_compacted and not self.is_migrated:
            self.oracle.check_audit()

    is_migrated = False


Work = Callable[[World], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    prepare: Work
    threads: tuple[Work, ...]
    after_crash: tuple[Work, ...] = ()
    level: int = 1
    preemptions: int = 2
    crashes: int = 0
    points: tuple[str, ...] = DURABLE + SHARED
    crash_points: tuple[str, ...] = DURABLE


@dataclass(frozen=True, slots=True)
class Failure:
    scenario: str
    choices: tuple[int, ...]
    error: BaseException
    story: tuple[str, ...]

    def __str__(self) -> str:
        listed = ",".join(map(str, self.choices))
        return "\n".join(
            (
                f"{type(self.error).__name__}: {self.error}",
                *self.story,
                f"again: {_PROGRAM} --scenario {self.scenario} --choices {listed or '-'}",
            )
        )


@dataclass(slots=True)
class Explored:
    schedules: int = 0
    points: int = 0
    traces: set[int] = field(default_factory=set)
    crashes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


class _ScenarioChoices(ListedChoices):
    """Count only the points that the scenario names."""

    def __init__(self, choices: tuple[int, ...], scenario: Scenario) -> None:
        super().__init__(choices, preemptions=scenario.preemptions, crashes=scenario.crashes)
        self._scenario = scenario

    def at_point(self, scheduler: Scheduler, me: SimulatedThread, label: str) -> Decision:
        if not label.startswith(self._scenario.points):
            return None
        return super().at_point(scheduler, me, label)

    def may_crash(self, label: str) -> bool:
        return label.startswith(self._scenario.crash_points)


def explore(
    scenario: Scenario,
    directory: Path,
    manager: MetadataManager = TopicBasedRemoteLogMetadataManager,
    *,
    limit: int | None = None,
    stop_at_first: bool = True,
) -> Explored:
    """Every schedule within the scenario's bounds; at most `limit` of them."""
    explored, exploration = Explored(), Exploration()
    for choices in exploration:
        run = play(scenario, choices, directory / str(explored.schedules), manager)
        explored.schedules += 1
        if explored.schedules % RUNS_PER_COLLECTION == 0:
            gc.collect()
        explored.points += run.scheduler.points
        explored.crashes += run.scheduler.crash_points
        explored.traces.add(hash(tuple(run.scheduler.trace)))
        if run.failure is not None:
            explored.failures.append(run.failure)
            if stop_at_first:
                break
        if limit is not None and explored.schedules >= limit:
            break
        exploration.add(run.choices)
    return explored


@dataclass(frozen=True, slots=True)
class Played:
    scheduler: Scheduler
    choices: ListedChoices
    failure: Failure | None


def play(
    scenario: Scenario,
    choices: tuple[int, ...],
    directory: Path,
    manager: MetadataManager = TopicBasedRemoteLogMetadataManager,
) -> Played:
    directory.mkdir(parents=True)
    strategy = _ScenarioChoices(choices, scenario)
    run = Scheduler(strategy, _START_MS)
    failure = None
    with cooperative_threading(run), UnexpectedErrors():
        world = World(run, directory, manager, scenario.level)
        try:
            scenario.prepare(world)
            if not _go_on(world, scenario.threads):
                world.oracle.note_starts()
                world.process.release()
                world.begin()
                _go_on(world, scenario.after_crash)
            world.settle()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failure = Failure(scenario.name, choices, error, tuple(run.story))
        finally:
            run.is_quiet = True
            run.kill()
            world.process.release()
            shutil.rmtree(directory)
    return Played(run, strategy, failure)


def _go_on(world: World, works: tuple[Work, ...]) -> bool:
    """Wait until all threads have ended (True), or a crash."""
    run = world.run

    def begin(work: Work) -> SimulatedThread:
        def do() -> None:
            # Like a failed task: it is retried, here in the final settlement.
            with suppress(IsothermError, OSError):
                work(world)

        return run.spawn(work.__name__, do)

    threads = [begin(work) for work in works]
    run.is_quiet = False
    ended = run.block(lambda: all(thread.has_ended for thread in threads), "threads")
    run.is_quiet = True
    if not ended:
        run.kill()
    return ended


# ---- the scenarios


def _appended(world: World) -> None:
    world.append(4)
    world.read()


def _copied(world: World) -> None:
    world.append(7)
    world.read()
    world.copy()


def _over_the_limit(world: World) -> None:
    _copied(world)
    world.retain_locally()
    world.append(3)
    world.limit_size(SEGMENT_BYTES)


def _records_deleted(world: World) -> None:
    world.append(13)
    world.read()
    world.process.checkpoint()
    world.delete_records(7)


def _all_records_deleted(world: World) -> None:
    _records_deleted(world)
    world.copy()
    world.delete_records(13)


def _uncopied_records_deleted(world: World) -> None:
    _copied(world)
    world.retain_locally()
    world.append(9)
    world.process.checkpoint()
    world.delete_records(13)


def _far_over_the_limit(world: World) -> None:
    world.append(19)
    world.read()
    world.copy()
    world.retain_locally()
    world.limit_size(2 * SEGMENT_BYTES)


def _staged(world: World) -> None:
    _copied(world)
    world.retain_locally()
    world.stage()


def _staged_over_the_limit(world: World) -> None:
    _over_the_limit(world)
    world.stage()


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="cut-event",
        prepare=_appended,
        threads=(World.copy,),
        after_crash=(World.follow, World.expire, World.copy_and_retain_locally),
        crashes=1,
        crash_points=("append metadata",),
        points=("append audit", "append metadata", "lock metadata partition", "delete"),
    ),
    Scenario(
        name="copy-crash",
        prepare=_appended,
        threads=(World.follow, World.copy, World.retain_locally),
        after_crash=(World.follow, World.expire, World.copy_and_retain_locally),
        preemptions=1,
        crashes=1,
    ),
    Scenario(
        name="copy-crash-level-0",
        prepare=_appended,
        threads=(World.follow, World.copy, World.retain_locally),
        after_crash=(World.follow, World.expire, World.copy_and_retain_locally),
        level=0,
        preemptions=1,
        crashes=1,
    ),
    Scenario(
        name="expire-copy",
        prepare=_over_the_limit,
        threads=(World.follow, World.expire, World.copy_and_retain_locally),
        after_crash=(World.follow, World.expire, World.copy_and_retain_locally),
        preemptions=1,
        crashes=1,
        crash_points=("append", "delete"),
    ),
    Scenario(
        name="cleanup-copy",
        prepare=_appended,
        threads=(World.follow, World.copy_and_retain_locally, World.clean_up, World.expire),
        after_crash=(World.follow, World.clean_up, World.expire, World.copy_and_retain_locally),
        preemptions=1,
        crashes=1,
        crash_points=("append", "put"),
        points=("append", "lock metadata partition", "delete", "put"),
    ),
    Scenario(
        name="finish-expire",
        prepare=_staged,
        threads=(World.follow, World.finish_compaction, World.expire, World.clean_up),
        after_crash=(World.follow, World.finish_compaction, World.expire),
        preemptions=1,
        crashes=1,
        crash_points=("append", "delete", "put"),
    ),
    Scenario(
        name="finish-deposed",
        prepare=_staged_over_the_limit,
        threads=(World.finish_compaction, World.finish_as_deposed, World.expire),
        preemptions=1,
    ),
    Scenario(
        name="finish-deposed-crash",
        prepare=_staged,
        threads=(World.finish_as_deposed, World.finish_compaction),
        after_crash=(World.follow, World.finish_as_deposed, World.finish_compaction),
        preemptions=1,
        crashes=1,
        points=("append", "put", "delete"),
        crash_points=("append", "put", "delete"),
    ),
    Scenario(
        name="finish-deposed-again",
        prepare=_staged,
        threads=(World.finish_as_deposed, World.compact_again),
        preemptions=1,
    ),
    Scenario(
        name="untier-retain",
        prepare=_copied,
        threads=(World.untier, World.retain_locally),
        after_crash=(World.follow, World.retain_locally),
        preemptions=2,
        points=("lock log", "write leader-epoch", "rename .log"),
    ),
    Scenario(
        name="expire-again",
        prepare=_far_over_the_limit,
        threads=(World.follow, World.expire_after_a_failure),
        after_crash=(World.follow, World.expire, World.copy),
        preemptions=0,
        crashes=1,
        crash_points=("append", "delete"),
    ),
    Scenario(
        name="start-forgotten",
        prepare=_records_deleted,
        threads=(World.retain_locally,),
        after_crash=(World.follow, World.copy_and_retain_locally),
        preemptions=0,
        crashes=1,
    ),
    Scenario(
        name="end-forgotten",
        prepare=_all_records_deleted,
        threads=(World.retain_locally,),
        after_crash=(World.follow, World.copy_and_retain_locally),
        preemptions=0,
        crashes=1,
    ),
    Scenario(
        name="gap-forgotten",
        prepare=_uncopied_records_deleted,
        threads=(World.retain_locally,),
        after_crash=(World.follow, World.copy_and_retain_locally),
        preemptions=0,
        crashes=1,
    ),
    Scenario(
        name="remove-staged",
        prepare=_staged,
        threads=(World.follow, World.finish_compaction, World.remove_topic),
        preemptions=1,
        points=("append", "delete", "put", "list", "cluster"),
    ),
    Scenario(
        name="migrate-copy",
        prepare=_appended,
        threads=(World.follow, World.migrate, World.copy_and_retain_locally),
        after_crash=(World.follow, World.migrate, World.copy_and_retain_locally, World.expire),
        level=0,
        preemptions=1,
        crashes=1,
        crash_points=("append",),
    ),
)


def scenario_of(name: str) -> Scenario:
    (found,) = (each for each in SCENARIOS if each.name == name)
    return found


def names() -> Iterator[str]:
    return (each.name for each in SCENARIOS)
