"""What coordinators have in common: a topic that stores their state, and a shard of it in memory
for each partition that this broker leads.
"""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

from isotherm.broker.coordinators.coordinator_shards import (
    CoordinatorShard,
    CoordinatorShards,
    Election,
)
from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.types import LeaderEpoch

Shard = TypeVar("Shard", bound=CoordinatorShard)


class TopicCoordinator(abc.ABC, Generic[Shard]):
    """Event loop thread only, but for `_fold`."""

    def __init__(self, partitions: CoordinatorTopic) -> None:
        self._partitions = partitions
        self._shards = CoordinatorShards[Shard](
            partitions.name, fold=self._fold, new_shard=self._new_shard, opened=self._on_opened
        )

    async def ensure_topic(self) -> None:
        """Create the topic unless it exists; see `TopicCreator`. With the embedded controller the
        topic is ready on return."""
        await self._partitions.ensure()

    # ---- leadership (coordinator_elections.Elected)

    def on_election(self, index: int, leader_epoch: LeaderEpoch) -> None:
        """Load a partition that this broker now leads."""
        self._shards.on_election(index, leader_epoch)

    def on_resignation(self, index: int, leader_epoch: LeaderEpoch | None) -> None:
        """Drop a partition that this broker no longer leads, or, if `leader_epoch` is None, no
        longer hosts."""
        self._shards.on_resignation(index, leader_epoch)

    async def wait_until_loaded(self) -> None:
        """Return when no partition is being loaded."""
        await self._shards.wait_until_loaded()

    async def stop(self) -> None:
        """Close the shards. The log keeps its records."""
        await self._shards.stop()

    # ---- shards

    @abc.abstractmethod
    def _empty_shard(self, index: int) -> Shard:
        """The shard of a log without records."""

    @abc.abstractmethod
    def _fold(self, index: int, election: Election) -> Shard:
        """The shard of a log. Any thread. Raises LoadAbandonedError if `election` is over."""

    def _resume(self, shard: Shard) -> None:
        """A shard is loaded: go on with what its records have begun."""

    def _new_shard(self, index: int) -> Shard | None:
        # Active in the loop iteration of its election: a request that has just created
        # the topic finds the shard.
        return self._empty_shard(index) if self._partitions.is_empty(index) else None

    def _on_opened(self, shard: Shard) -> None:
        self._partitions.note_loaded(shard)
        self._resume(shard)
