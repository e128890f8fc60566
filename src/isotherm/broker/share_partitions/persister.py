"""The state of share partitions, read and written by those who need it (Kafka: DefaultPersister).

The leaders of partitions read and write it, the group coordinator begins and deletes it. Each share
partition has its coordinator, which is looked up for every attempt.

    answers = await persister.read([ReadByLeader(key, leader_epoch), ...])
    answer = answers[key]          # a ReadState, or the IsothermError of this partition
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.share_partitions.state_requests import (
    DeleteState,
    InitializeState,
    ReadByLeader,
    ReadState,
    ReadSummary,
    StateRequest,
    StateResult,
    StateSummary,
    WriteState,
)
from isotherm.errors import IsothermError


class Persister:
    """Event loop thread only. No method raises for a partition: its error is its answer.

    An answer is an error of the coordinator (FencedStateEpochError, FencedLeaderEpochError,
    InvalidRequestError without a state, ...), UnknownTopicOrPartitionError for a topic that is
    gone, or, after all attempts, CoordinatorNotAvailableError, CoordinatorLoadInProgressError,
    NotCoordinatorError, PeerDisconnectedError, PeerTimeoutError or NotEnoughMemoryError. After the
    latter ones a change may have been made all the same. Two requests of one list must not be of
    one partition.
    """

    async def initialize(
        self, requests: Sequence[InitializeState]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        """Begin states, or begin them anew under a higher state epoch. None is success. The topic
        of the states is created if it is missing."""
        return cast("dict[SharePartitionKey, IsothermError | None]", await self._ask(requests))

    async def write(
        self, requests: Sequence[WriteState]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        """Change states. None is success. Writes of one partition reach its coordinator in any
        order, so its leader has one at a time under way."""
        return cast("dict[SharePartitionKey, IsothermError | None]", await self._ask(requests))

    async def read(
        self, requests: Sequence[ReadByLeader]
    ) -> dict[SharePartitionKey, ReadState | IsothermError]:
        """The states for the partitions' leader. A newer leader epoch fences older ones."""
        return cast("dict[SharePartitionKey, ReadState | IsothermError]", await self._ask(requests))

    async def read_summaries(
        self, keys: Iterable[SharePartitionKey]
    ) -> dict[SharePartitionKey, StateSummary | IsothermError]:
        """The start offsets and epochs of states, for those who do not lead the partitions."""
        return cast(
            "dict[SharePartitionKey, StateSummary | IsothermError]",
            await self._ask([ReadSummary(key) for key in keys]),
        )

    async def delete(
        self, keys: Iterable[SharePartitionKey]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        """Forget states. None is success, also without a state."""
        return cast(
            "dict[SharePartitionKey, IsothermError | None]",
            await self._ask([DeleteState(key) for key in keys]),
        )

    async def _ask(
        self, requests: Sequence[StateRequest]
    ) -> dict[SharePartitionKey, StateResult | IsothermError]:
        raise NotImplementedError
