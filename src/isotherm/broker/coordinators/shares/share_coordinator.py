"""The coordinator of the state of share partitions (Kafka: ShareCoordinatorService).

`share_state` decides what is written. This module appends the decision to `__share_group_state` and
keeps it in memory, in one step of the event loop. A caller answers once the shard that a method
returns has committed what it appended (`CoordinatorShard.wait_committed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from isotherm.broker.coordinators.coordinator_shards import Election
from isotherm.broker.coordinators.shares.share_shard import ShareShard
from isotherm.broker.coordinators.shares.share_state import (
    StateWrite,
    initialized,
    is_rewritten,
    read_by_leader,
    rewritten,
    written,
)
from isotherm.broker.coordinators.shares.share_state_log import ShareStateLog
from isotherm.broker.coordinators.shares.share_state_records import (
    SharePartitionKey,
    ShareSnapshot,
    ShareStateRecord,
    ShareUpdate,
    state_partition,
)
from isotherm.broker.coordinators.topic_coordinator import TopicCoordinator
from isotherm.broker.loop_turns import PART_SIZE, next_turn
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.clock import Clock
from isotherm.config.share_coordinator import ShareCoordinatorConfig
from isotherm.errors import (
    InvalidRequestError,
    IsothermError,
    NotCoordinatorError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.remote.outages import log_failure
from isotherm.types import Offset, TimestampMs

logger = logging.getLogger(__name__)


class ShareCoordinator(TopicCoordinator[ShareShard]):
    """Event loop thread only. Call `stop` at the end."""

    def __init__(
        self,
        config: ShareCoordinatorConfig,
        log: ShareStateLog,
        metadata: ClusterMetadata,
        clock: Clock,
    ) -> None:
        super().__init__(log.partitions)
        self._config = config
        self._log = log
        self._metadata = metadata
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.write_count = 0
        """Requests to write the state of a share partition, and new leader epochs of reads."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._run_later(config.share_coordinator_state_topic_prune_interval_ms, self._prune)
        self._run_later(
            config.share_coordinator_cold_partition_snapshot_interval_ms, self._renew_snapshots
        )

    async def stop(self) -> None:
        """Close the shards and end the periodic tasks. The log keeps its records."""
        for timer in self._timers.values():
            timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await super().stop()

    def _empty_shard(self, index: int) -> ShareShard:
        return self._log.new_shard(index)

    def _fold(self, index: int, election: Election) -> ShareShard:
        return self._log.fold(index, election)

    # ---- look-ups

    def _shard_of(self, key: SharePartitionKey) -> ShareShard:
        """Raises what `CoordinatorShards.at` raises."""
        count = self._partitions.partition_count
        if count is None:
            raise NotCoordinatorError("this broker has no share group's state")
        return self._shards.at(state_partition(key, count))

    def _check_exists(self, key: SharePartitionKey) -> None:
        topic = self._metadata.image.topics_by_id.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            raise UnknownTopicOrPartitionError(
                f"there is no such partition topic_id={key.topic_id} partition={key.partition}"
            )

    # ---- requests. Each raises IsothermError without a change.

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: Offset
    ) -> ShareShard:
        """Begin the state of a share partition, or begin it anew."""
        shard = self._shard_of(key)
        _check_number(key)
        state = shard.states.get(key)
        value = initialized(state, state_epoch, start_offset, self._clock.now_ms())
        self._check_exists(key)
        if state is None:
            self._check_room(key)
        self._append(shard, key, value)
        return shard

    def write(self, key: SharePartitionKey, write: StateWrite) -> ShareShard:
        """Change the state of a share partition."""
        shard = self._shard_of(key)
        self.write_count += 1
        _check_number(key)
        state = shard.states.get(key)
        value = written(state, write, self._clock.now_ms(), self._updates_per_snapshot)
        self._check_exists(key)
        self._append(shard, key, value)
        return shard

    def read(self, key: SharePartitionKey, leader_epoch: int) -> tuple[ShareShard, ShareSnapshot]:
        """The state for a leader of the partition; leaders of older epochs are fenced."""
        shard = self._shard_of(key)
        _check_number(key)
        state, fence = read_by_leader(
            shard.states.get(key), leader_epoch, self._clock.now_ms(), self._updates_per_snapshot
        )
        self._check_exists(key)
        if fence is not None:
            self.write_count += 1
            self._append(shard, key, fence)
        return shard, state

    def read_summary(self, key: SharePartitionKey) -> tuple[ShareShard, ShareSnapshot | None]:
        """The state of a share partition, for a reader that is not its leader. None if there is
        none yet."""
        shard = self._shard_of(key)
        _check_number(key)
        self._check_exists(key)
        state = shard.states.get(key)
        return shard, None if state is None else state.snapshot

    def delete(self, key: SharePartitionKey) -> ShareShard:
        """Forget the state of a share partition. No effect if there is none."""
        shard = self._shard_of(key)
        _check_number(key)
        self._check_exists(key)
        if key in shard.states:
            self._log.append(shard, [ShareStateRecord(key, None)])
        return shard

    @property
    def share_partition_count(self) -> int:
        """Share partitions whose state this broker coordinates. Any thread."""
        return sum(len(shard.states) for shard in self._shards.active())

    def partition_counts(self) -> dict[str, int]:
        """Partitions of `__share_group_state`, by their state. Any thread."""
        return self._shards.counts()

    def _check_room(self, key: SharePartitionKey) -> None:
        count = self.share_partition_count
        if count >= self._config.share_coordinator_share_partitions_max:
            raise PolicyViolationError(
                "this broker coordinates its maximum of share partitions"
                f" group_id={key.group_id} count={count}"
                " key=share.coordinator.share.partitions.max"
            )

    @property
    def commit_timeout_s(self) -> float:
        """How long an answer waits for the replicas."""
        return self._config.share_coordinator_write_timeout_ms / 1000

    def topics_deleted(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Forget the states of deleted topics' partitions, a little later."""
        self._start(self._forget(topic_ids))

    async def _forget(self, topic_ids: Collection[uuid.UUID]) -> None:
        for shard in self._shards.active():
            with self._logged("states of deleted topics are not deleted", shard):
                for keys in _parts(shard):
                    gone = [
                        key for key in keys if key.topic_id in topic_ids and key in shard.states
                    ]
                    self._append_all(shard, [ShareStateRecord(key, None) for key in gone])
                    await next_turn()

    @property
    def _updates_per_snapshot(self) -> int:
        return self._config.share_coordinator_snapshot_update_records_per_snapshot

    def _append(
        self, shard: ShareShard, key: SharePartitionKey, value: ShareSnapshot | ShareUpdate
    ) -> None:
        self._log.append(shard, [ShareStateRecord(key, value)])

    def _append_all(self, shard: ShareShard, records: list[ShareStateRecord]) -> None:
        if records and not shard.is_closed:
            self._log.append(shard, records)

    @contextlib.contextmanager
    def _logged(self, failure: str, shard: ShareShard) -> Iterator[None]:
        """Errors of one shard are logged, and do not keep others waiting."""
        try:
            yield
        except IsothermError as error:
            name = self._partitions.name
            log_failure(logger, error, f"{failure} partition={name}-{shard.index}")

    # ---- time

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run_later(
        self, interval_ms: TimestampMs, work: Callable[[ShareShard], Awaitable[None]]
    ) -> None:
        """Do the work for each shard every `interval_ms`."""

        async def run() -> None:
            for shard in self._shards.active():
                await work(shard)
            self._run_later(interval_ms, work)

        self._timers[work.__name__] = self._loop.call_later(
            interval_ms / 1000, lambda: self._start(run())
        )

    async def _prune(self, shard: ShareShard) -> None:
        with self._logged("records are not pruned", shard):
            self._log.prune(shard)
        await next_turn()

    async def _renew_snapshots(self, shard: ShareShard) -> None:
        """Write old snapshots again, unless each of the shard's was renewed before and nothing has
        changed since."""
        if all(is_rewritten(state) for state in shard.states.values()):
            return
        now_ms = self._clock.now_ms()
        age_ms = self._config.share_coordinator_cold_partition_snapshot_interval_ms
        with self._logged("snapshots are not renewed", shard):
            for keys in _parts(shard):
                states = [(key, shard.states[key]) for key in keys if key in shard.states]
                records = [
                    ShareStateRecord(key, rewritten(state, now_ms))
                    for key, state in states
                    if now_ms - state.snapshot.write_timestamp_ms >= age_ms
                ]
                self._append_all(shard, records)
                await next_turn()


def _parts(shard: ShareShard) -> Iterator[Sequence[SharePartitionKey]]:
    """The shard's share partitions in parts, between which the event loop has other turns."""
    keys = tuple(shard.states)
    for start in range(0, len(keys), PART_SIZE):
        yield keys[start : start + PART_SIZE]


def _check_number(key: SharePartitionKey) -> None:
    if key.partition < 0:
        raise InvalidRequestError(f"a partition is not negative partition={key.partition}")
