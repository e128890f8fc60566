"""A fetcher's requests to the leader of its partitions, over one blocking connection.

The cluster's metadata.version determines the request versions; no ApiVersions request is sent.
Source: Kafka RemoteLeaderEndPoint, MetadataVersion.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from isotherm.client.node_connection import NodeConnection
from isotherm.client.requests import EncodedRequest, ReceiveBuffer
from isotherm.errors import PeerDisconnectedError, RetriableError
from isotherm.protocol import follower_fetch
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.fetch import EpochEndOffset, FetchRequest, FetchResponse
from isotherm.types import BrokerId, LeaderEpoch, Offset, TopicIdPartition

LATEST = -1
EARLIEST = -2
EARLIEST_LOCAL = -4
EARLIEST_PENDING_UPLOAD = -6

# Kafka's default. The timeout of the socket ends the wait.
_LOOK_UP_TIMEOUT = datetime.timedelta(seconds=30)
# The isolation level READ_UNCOMMITTED: a replica also needs records of open transactions.
_ANY_RECORD = 0


_fetch_writer = functools.cache(follower_fetch.request_writer)
_fetch_reader = functools.cache(follower_fetch.response_reader)


class LookUpError(RetriableError):
    """The leader answered a look-up with an error.

    `error_code` determines the follower's reaction.
    """

    def __init__(self, message: str, error_code: ErrorCode) -> None:
        super().__init__(message)
        self.error_code = error_code


class OffsetAndEpoch(NamedTuple):
    offset: Offset
    leader_epoch: LeaderEpoch


class RequestVersions(NamedTuple):
    fetch: int
    list_offsets: int

    @classmethod
    def of(cls, metadata_version: int) -> RequestVersions:
        """The versions for a feature level of metadata.version, 21 (3.9-IV0) or above."""
        fetch = 18 if metadata_version >= 27 else 17
        if metadata_version >= 29:
            return cls(fetch, 11)
        return cls(fetch, 10 if metadata_version >= 25 else 9)


class LeaderEndpoint:
    """The requests of a fetcher to a leader. For one thread, except `interrupt` and `close`."""

    def __init__(
        self,
        connection: NodeConnection,
        *,
        broker_id: BrokerId,
        broker_epoch: Callable[[], int],
        versions: Callable[[], RequestVersions],
    ) -> None:
        """`broker_epoch` and `versions` are called for each request, because the broker may
        register again and the cluster may be upgraded."""
        self._connection = connection
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._versions = versions
        self._buffer = ReceiveBuffer()

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """Fetch. The records of the response are valid until the next call. Raises
        PeerDisconnectedError and PeerTimeoutError."""
        version = self._versions().fetch
        # The fetch has codecs of its own and one receive buffer that is used again: it carries the
        # records. Look-ups are rare and take the generic ones.
        body = bytearray()
        _fetch_writer(version)(request, self._broker_epoch(), body)
        encoded = EncodedRequest(ApiKey.FETCH, version, body, is_flexible=True)
        answer = self._connection.exchange(encoded, buffer=self._buffer)
        try:
            response, _ = _fetch_reader(version)(answer, 0)
        except ProtocolError as error:
            raise PeerDisconnectedError(
                f"a leader's answer is malformed peer={self._connection.address}"
            ) from error
        return response

    def find_offset(
        self, place: TopicIdPartition, leader_epoch: LeaderEpoch, timestamp: int
    ) -> OffsetAndEpoch:
        """The offset of a special timestamp (LATEST, EARLIEST, ...). Raises LookUpError as well."""
        request = self._list_offsets(place, leader_epoch, timestamp)
        answer = self._only_partition(self._connection.send(request), place)
        return OffsetAndEpoch(answer.offset, answer.leader_epoch)

    def _list_offsets(
        self, place: TopicIdPartition, leader_epoch: LeaderEpoch, timestamp: int
    ) -> Any:
        version = self._versions().list_offsets
        kind = request_class(ApiKey.LIST_OFFSETS, version)
        types: Any = sys.modules[kind.__module__]
        partition = types.ListOffsetsPartition(
            partition_index=i32(place.partition),
            current_leader_epoch=i32(leader_epoch),
            timestamp=i64(timestamp),
        )
        topic = types.ListOffsetsTopic(name=TopicName(place.topic), partitions=(partition,))
        fields: dict[str, Any] = {
            "replica_id": KioBrokerId(self._broker_id),
            "isolation_level": i8(_ANY_RECORD),
            "topics": (topic,),
        }
        if version >= 10:
            fields["timeout"] = i32Timedelta.parse(_LOOK_UP_TIMEOUT)
        return types.ListOffsetsRequest(**fields)

    def find_epoch_end(
        self, place: TopicIdPartition, leader_epoch: LeaderEpoch, epoch: LeaderEpoch
    ) -> EpochEndOffset:
        """The leader's last epoch up to `epoch`, and its end offset. Raises LookUpError as well."""
        partition = OffsetForLeaderPartition(
            partition=i32(place.partition),
            current_leader_epoch=i32(leader_epoch),
            leader_epoch=i32(epoch),
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=KioBrokerId(self._broker_id),
            topics=(OffsetForLeaderTopic(topic=TopicName(place.topic), partitions=(partition,)),),
        )
        answer = self._only_partition(self._connection.send(request), place)
        return EpochEndOffset(answer.leader_epoch, answer.end_offset)

    def _only_partition(self, response: Any, place: TopicIdPartition) -> Any:
        partitions = [partition for topic in response.topics for partition in topic.partitions]
        if len(partitions) != 1:
            raise PeerDisconnectedError(
                "a leader's response is not for the requested partition"
                f" peer={self._connection.address} requested={place} partitions={len(partitions)}"
            )
        if partitions[0].error_code != ErrorCode.none:
            code = ErrorCode(partitions[0].error_code)
            raise LookUpError(
                f"a leader refuses a look-up peer={self._connection.address} partition={place}"
                f" error={code_name(code)}",
                code,
            )
        return partitions[0]

    def interrupt(self) -> None:
        """Let a fetch that waits raise PeerDisconnectedError. No effect once its answer arrives.
        Any thread."""
        self._connection.interrupt()

    def close(self) -> None:
        """Abort a call that waits, and refuse later calls. Any thread."""
        self._connection.close()
