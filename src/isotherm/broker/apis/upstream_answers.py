"""The answers of a read replica that only the cluster in front of it can give.

    ListOffsets            what lies behind the tier: -1, -3, -4, -6, later times, and all of a
                           partition without a history
    OffsetForLeaderEpoch   the epochs from the last one of the tier on
    DescribeConfigs        topics
    FindCoordinator        all

The replica asks with its own rights. So it answers only what a client may know by the replica's own
ACLs, which are checked before.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.metadata_records import TOPIC_RESOURCE
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.peers.upstream_client import UpstreamClient
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api, Handler, handled, with_handlers
from isotherm.client.node_address import NodeAddress
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import UNKNOWN_OFFSET, TopicPartition

_IN_THE_TIER = frozenset({-2, -5})


def upstream_apis(
    apis: Mapping[int, Api], client: UpstreamClient, *, ends_at_the_tier: bool
) -> Mapping[int, Api]:
    """`ends_at_the_tier`: the end of the tier is the end of the log."""
    handlers: dict[int, Callable[[Handler, UpstreamClient], Handler]] = {
        ApiKey.DESCRIBE_CONFIGS: _describe_configs,
        ApiKey.FIND_COORDINATOR: _find_coordinator,
    }
    if not ends_at_the_tier:
        handlers |= {
            ApiKey.LIST_OFFSETS: _list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: _epoch_ends,
        }
    return with_handlers(
        apis, {key: make(apis[key].handle, client) for key, make in handlers.items()}
    )


def _list_offsets(handle: Handler, client: UpstreamClient) -> Handler:
    async def answer(context: RequestContext, request: Any) -> Any:
        response = await handled(handle(context, request))
        timestamps = {
            TopicPartition(topic.name, partition.partition_index): partition.timestamp
            for topic in request.topics
            for partition in topic.partitions
        }

        def is_of_the_tail(place: TopicPartition, part: Any) -> bool:
            timestamp = timestamps[place]
            if part.error_code is not ErrorCode.none:
                return False
            if part.offset == UNKNOWN_OFFSET:
                # Also -5 for read_committed if a transaction is open where the tier ends: the
                # leader knows whether it has ended since.
                return True
            if timestamp in _IN_THE_TIER:
                log = _partition(context, place).log
                return log.log_start_offset == log.log_end_offset
            return bool(timestamp < 0)

        return await _completed(
            context, request, response, client, "partition_index", "name", is_of_the_tail
        )

    return answer


def _epoch_ends(handle: Handler, client: UpstreamClient) -> Handler:
    async def answer(context: RequestContext, request: Any) -> Any:
        response = await handled(handle(context, request))
        epochs = {
            TopicPartition(topic.topic, partition.partition): partition.leader_epoch
            for topic in request.topics
            for partition in topic.partitions
        }

        def is_of_the_tail(place: TopicPartition, part: Any) -> bool:
            if part.error_code is not ErrorCode.none:
                return False
            entries = _partition(context, place).log.leader_epochs.entries
            end = _partition(context, place).log.log_end_offset
            last = max((entry.epoch for entry in entries if entry.start_offset < end), default=-1)
            return bool(epochs[place] >= last)

        return await _completed(
            context, request, response, client, "partition", "topic", is_of_the_tail
        )

    return answer


def _find_coordinator(handle: Handler, client: UpstreamClient) -> Handler:
    async def answer(context: RequestContext, request: Any) -> Any:
        return await _in_thread(lambda: client.pass_on_to_any(request))

    return answer


def _describe_configs(handle: Handler, client: UpstreamClient) -> Handler:
    async def answer(context: RequestContext, request: Any) -> Any:
        if any(resource.resource_type != TOPIC_RESOURCE for resource in request.resources):
            return await handled(handle(context, request))
        return await _in_thread(lambda: client.pass_on_to_any(request))

    return answer


async def _completed(
    context: RequestContext,
    request: Any,
    response: Any,
    client: UpstreamClient,
    index_field: str,
    name_field: str,
    is_of_the_tail: Callable[[TopicPartition, Any], bool],
) -> Any:
    """The response, in which the leaders of the cluster answer for the partitions that the tier
    does not decide."""
    tail: dict[NodeAddress | None, set[TopicPartition]] = defaultdict(set)
    for topic in response.topics:
        for partition in topic.partitions:
            place = TopicPartition(getattr(topic, name_field), getattr(partition, index_field))
            if is_of_the_tail(place, partition):
                tail[_leader(context, client, place)].add(place)
    answers: dict[TopicPartition, Any] = {}
    for address, places in tail.items():
        ask = partial(_ask, client, address, request, places, index_field, name_field)
        answers |= await _in_thread(ask)
    if not answers:
        return response

    def completed(topic: Any) -> Any:
        name = getattr(topic, name_field)
        partitions = []
        for partition in topic.partitions:
            other = answers.get(TopicPartition(name, getattr(partition, index_field)), partition)
            if isinstance(other, ErrorCode):
                other = dataclasses.replace(partition, error_code=other)
            partitions.append(other)
        return dataclasses.replace(topic, partitions=tuple(partitions))

    return dataclasses.replace(response, topics=tuple(map(completed, response.topics)))


def _ask(
    client: UpstreamClient,
    address: NodeAddress | None,
    request: Any,
    places: set[TopicPartition],
    index_field: str,
    name_field: str,
) -> dict[TopicPartition, Any]:
    """The leader's answers by partition, or the error code of each."""
    topics = []
    for topic in request.topics:
        name = getattr(topic, name_field)
        chosen = [
            # The replica may know a newer leader epoch than the client, or an older one.
            dataclasses.replace(partition, **_any_epoch(partition))
            for partition in topic.partitions
            if TopicPartition(name, getattr(partition, index_field)) in places
        ]
        if chosen:
            topics.append(dataclasses.replace(topic, partitions=tuple(chosen)))
    try:
        if address is None:
            raise NotLeaderOrFollowerError("the partitions have no leader")
        answer = client.pass_on(address, dataclasses.replace(request, topics=tuple(topics)))
    except IsothermError as error:
        return dict.fromkeys(places, error_code(error))
    return {
        TopicPartition(getattr(topic, name_field), getattr(partition, index_field)): partition
        for topic in answer.topics
        for partition in topic.partitions
    }


def _any_epoch(entry: Any) -> dict[str, Any]:
    if not hasattr(entry, "current_leader_epoch"):
        return {}
    return {"current_leader_epoch": type(entry.current_leader_epoch)(-1)}


def _leader(
    context: RequestContext, client: UpstreamClient, place: TopicPartition
) -> NodeAddress | None:
    leader = _partition(context, place).goes_on_at
    return None if leader is None else client.addresses.get(leader)


def _partition(context: RequestContext, place: TopicPartition) -> Partition:
    return context.services.replica_manager.find_partition(place.topic, None, place.partition)


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)
