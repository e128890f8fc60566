"""Requests for partitions of a bucket that a read replica has not read yet.

    ListOffsets, OffsetForLeaderEpoch   wait for them, and are then answered as usual
    Fetch                               waits at most its max.wait if none of its partitions is
                                        read; otherwise it has the records of those that are

A partition that is still unread then is answered NOT_LEADER_OR_FOLLOWER, which clients retry. An
answer never comes from a part of a partition.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from isotherm.broker.partitions.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api, Handler, handled, with_handlers
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import TopicIdPartition

FIRST_WAIT_S = 10.0
"""How long a request waits while none of its partitions is read: less than clients wait for an
answer. Some clients give up after the second error."""
REST_WAIT_S = 1.0
"""How long it waits for the rest: consumers read those that are there meanwhile."""


class UnreadPartitions:
    """The partitions that are not read yet. One thread calls `note_read`; `wait` is for the event
    loop."""

    def __init__(
        self,
        partitions: Collection[TopicIdPartition],
        ask: Callable[[Collection[TopicIdPartition]], None],
    ) -> None:
        """`ask` returns at once; any thread may call it."""
        self._reads: dict[TopicIdPartition, Future[None]] = {
            partition: Future() for partition in partitions
        }
        self._names: dict[tuple[str | uuid.UUID, int], TopicIdPartition] = {}
        for partition in partitions:
            self._names[partition.topic, partition.partition] = partition
            self._names[partition.topic_id, partition.partition] = partition
        self._ask = ask

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def partitions(self) -> tuple[TopicIdPartition, ...]:
        return tuple(self._reads)

    def note_read(self, partition: TopicIdPartition) -> None:
        """Requests for the partition are served from here on, or never will be."""
        self._reads.pop(partition).set_result(None)

    def ask(self, keys: Collection[tuple[Any, int]]) -> list[TopicIdPartition]:
        """Ask for the unread partitions among these, each a topic's name or id and a number."""
        places = [self._names[key] for key in keys if key in self._names]
        unread = [place for place in places if place in self._reads]
        if unread:
            self._ask(unread)
        return unread

    async def wait(self, keys: Collection[tuple[Any, int]]) -> None:
        """Return when the partitions are read. Waits at most FIRST_WAIT_S until one of them is, and
        then REST_WAIT_S."""
        unread = self.ask(keys)
        # One that was read since is missing.
        reads = [read for partition in unread if (read := self._reads.get(partition)) is not None]
        futures = {asyncio.wrap_future(read) for read in reads}
        if len(futures) == len(set(keys)):
            _, futures = await asyncio.wait(
                futures, timeout=FIRST_WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        if futures:
            await asyncio.wait(futures, timeout=REST_WAIT_S)

    async def wait_for_first(
        self, partitions: Collection[TopicIdPartition], timeout_s: float
    ) -> None:
        """Return when one of these unread partitions is read, at most after `timeout_s`."""
        futures = {asyncio.wrap_future(self._reads[partition]) for partition in partitions}
        await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def awaiting_apis(apis: Mapping[int, Api], unread: UnreadPartitions) -> Mapping[int, Api]:
    fetch, list_offsets = apis[ApiKey.FETCH], apis[ApiKey.LIST_OFFSETS]
    epoch_ends = apis[ApiKey.OFFSET_FOR_LEADER_EPOCH]
    handlers: dict[int, Handler] = {
        fetch.key: _fetching(fetch.handle, unread),
        list_offsets.key: _waiting(list_offsets.handle, unread, "name", "partition_index"),
        epoch_ends.key: _waiting(epoch_ends.handle, unread, "topic", "partition"),
    }
    return with_handlers(apis, handlers)


def _fetching(handle: Handler, unread: UnreadPartitions) -> Handler:
    async def answer_later(
        context: RequestContext, request: Any, partitions: Collection[TopicIdPartition]
    ) -> Any:
        await unread.wait_for_first(partitions, request.max_wait_ms / 1000)
        return await handled(handle(context, request))

    def answer(context: RequestContext, request: Any) -> Any:
        if not unread:
            return handle(context, request)
        keys = [
            (topic.topic_id or topic.name, partition.partition)
            for topic in request.topics
            for partition in topic.partitions
        ]
        partitions = unread.ask(keys)
        # A request that goes on with a session does not name the partitions that are read.
        is_whole = request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        if is_whole and partitions and len(partitions) == len(keys):
            return answer_later(context, request, partitions)
        return handle(context, request)

    return answer


def _waiting(
    handle: Handler, unread: UnreadPartitions, topic_field: str, partition_field: str
) -> Handler:
    async def answer(context: RequestContext, request: Any) -> Any:
        await unread.wait(
            {
                (getattr(topic, topic_field), getattr(partition, partition_field))
                for topic in request.topics
                for partition in topic.partitions
            }
        )
        return await handled(handle(context, request))

    return answer
