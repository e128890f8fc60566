"""Fetches one partition's batches from its leader, as bytes, for readers with a decoder of their
own.

librdkafka makes an object of each record, and takes the name of a header for a C string in UTF-8:
another name ends in an error, or at its first NUL. Here the reader gets the batches as they are.

    Metadata 9   at a bootstrap server: the address of the leader
    Fetch 12     at the leader, or at the replica that it names for `client.rack` (KIP-392)

Both versions are served by every broker since Kafka 2.7. Topics have names in them: Fetch 13 has
ids. The next request is sent before the reader gets an answer, so the broker reads while the reader
decodes. Source: Kafka Fetcher, FetchRequest.json, MetadataRequest.json.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.client.broker_probe import check_brokers
from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import NodeSecurity
from isotherm.clock import Clock
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import (
    CorruptRecordError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PeerDisconnectedError,
    PeerTimeoutError,
    RejectedError,
    RequestTimedOutError,
    RetriableError,
)
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.record.batch_table import read_batch_table
from isotherm.types import BrokerId, Offset, ProducerId, TopicPartition

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable

FETCH_BYTES = 8 * 1024 * 1024
"""How much a broker is asked for at a time. It sends a larger batch whole."""

_FETCH_WAIT = datetime.timedelta(milliseconds=500)
# As librdkafka's socket.timeout.ms: a broker may have to fetch from the bucket.
_SOCKET_TIMEOUT_MAX_S = 60.0
# A shorter timeout of a reader bounds the time without records, not each step of a login.
_SOCKET_TIMEOUT_MIN_S = 5.0
_RETRY_INTERVAL_S = 0.1
# The planner has seen the topic, so a broker that does not know it is behind, or the topic is gone.
_UNKNOWN_TOPIC_S = 5.0
_FETCH_VERSION = 12
_METADATA_VERSION = 9
_NO_BROKER: BrokerId = -1
_NO_SESSION = -1
_RESPONSE_BYTES_MAX = 2**31 - 1
_UNKNOWN = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class FetchedBatches(NamedTuple):
    """Whole batches, one row of `table` for each. The first may begin below the wanted offset.

    `aborted` names the aborted transactions of a read_committed fetch, by producer id and first
    offset.
    """

    data: memoryview
    table: BatchTable
    aborted: Sequence[tuple[ProducerId, Offset]]
    next_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """`timeout_ms` bounds the time without any batch."""

    isolation_level: int = 0
    timeout_ms: int = 120_000
    fetch_bytes: int = FETCH_BYTES


class _Unserved(RetriableError):
    """A broker does not serve the partition at the moment. Ask for its leader again."""


class _UnknownPartition(_Unserved):
    """A broker does not know the partition."""


class PartitionFetch:
    """Reads one partition over one connection at a time. For one thread.

    `properties` are a client's. `bootstrap.servers`, `client.id` and `client.rack` count, and
    `security` is made of the others.
    """

    def __init__(
        self,
        place: TopicPartition,
        properties: Mapping[str, Any],
        security: NodeSecurity,
        clock: Clock,
        settings: FetchSettings | None = None,
    ) -> None:
        """Open no connection yet."""
        self._place = place
        self._properties = librdkafka_properties(properties)
        self._security = security
        self._clock = clock
        self._settings = settings or FetchSettings()
        self._addresses = bootstrap_addresses(str(self._properties["bootstrap.servers"]))
        self._nodes: dict[BrokerId, NodeAddress] = {}
        self._client_id = str(self._properties.get("client.id", "isotherm"))
        self._rack = str(self._properties.get("client.rack", ""))
        self._link: _Link | None = None
        self._requested: Offset | None = None

    def batches(self, start: Offset, end: Offset) -> Generator[FetchedBatches, None, None]:
        """The batches with offsets in [start, end), in order. Closing the iterator ends its
        connection.

        Brokers that move, restart or refuse for the moment are asked again. Raises
        RequestTimedOutError with their last reason if no batch comes for the settings' time,
        OffsetOutOfRangeError if the brokers do not have the offsets, CorruptRecordError for a
        damaged answer, and SaslAuthenticationError and BrokerUnreachableError as `check_brokers`.
        """
        next_offset = start
        heard_s = self._clock.monotonic_s()
        reason = "no record"
        with contextlib.closing(self):
            while next_offset < end:
                fetched = None
                try:
                    fetched = self._fetch(next_offset)
                except (PeerDisconnectedError, PeerTimeoutError, _Unserved) as error:
                    reason = str(error) or type(error).__name__
                    self.close()
                    self._check_exists(error, heard_s)
                if fetched is not None:
                    next_offset = fetched.next_offset
                    if next_offset < end and self._link is not None:
                        self._request_ahead(self._link, next_offset)
                    yield fetched
                    heard_s, reason = self._clock.monotonic_s(), "no record"
                elif self._clock.monotonic_s() - heard_s > self._settings.timeout_ms / 1000:
                    raise RequestTimedOutError(
                        f"brokers sent no record in time {self._at(next_offset)}"
                        f" timeout_ms={self._settings.timeout_ms} reason={reason!r}"
                    )
                else:
                    # Also after an empty answer: a broker that cannot reach its bucket may send one
                    # at once. `Clock` has no sleep: waiting for an event that never comes is one.
                    self._clock.wait(threading.Event(), _RETRY_INTERVAL_S)

    def close(self) -> None:
        """Close the connection. The next fetch opens another."""
        self._requested = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def _fetch(self, offset: Offset) -> FetchedBatches | None:
        """The next batches from `offset` on; None if there were none in time."""
        link = self._link or self._connect()
        if self._requested != offset:
            self._request(link, offset)
        self._requested = None
        answer = link.finish()
        ((partition,),) = (topic.partitions for topic in answer.responses)
        if partition.error_code is not ErrorCode.none:
            raise self._refused(partition.error_code, offset, link)
        if partition.preferred_read_replica not in (_NO_BROKER, link.node):
            self._move(partition.preferred_read_replica)
            return None
        if not partition.records:
            return None
        table, size = read_batch_table(partition.records)
        if not size:
            raise CorruptRecordError(f"a response has no complete batch {self._at(offset)}")
        last = table[-1]
        next_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
        if next_offset <= offset:
            raise CorruptRecordError(f"a response ends before its offset {self._at(offset)}")
        aborted = [
            (transaction.producer_id, transaction.first_offset)
            for transaction in partition.aborted_transactions or ()
        ]
        return FetchedBatches(partition.records[:size], table, aborted, next_offset)

    def _request_ahead(self, link: _Link, offset: Offset) -> None:
        # The next fetch will see that the connection is lost, and open another.
        with contextlib.suppress(PeerDisconnectedError, PeerTimeoutError):
            self._request(link, offset)

    def _request(self, link: _Link, offset: Offset) -> None:
        partition = {
            "partition": self._place.partition,
            "fetch_offset": offset,
            "partition_max_bytes": self._settings.fetch_bytes,
        }
        link.start(
            ApiKey.FETCH,
            _FETCH_VERSION,
            {
                "replica_id": _NO_BROKER,  # a consumer
                "max_wait": _FETCH_WAIT,
                "min_bytes": 1,
                "max_bytes": self._settings.fetch_bytes,
                "isolation_level": self._settings.isolation_level,
                "session_epoch": _NO_SESSION,
                "topics": [{"topic": self._place.topic, "partitions": [partition]}],
                "forgotten_topics_data": (),
                "rack_id": self._rack,
            },
        )
        self._requested = offset

    def _refused(self, code: ErrorCode, offset: Offset, link: _Link) -> Exception:
        reason = f"reason={code.name.upper()} peer={link.address}"
        if code is ErrorCode.offset_out_of_range:
            if link.is_leader:
                return OffsetOutOfRangeError(
                    f"brokers no longer have the records {self._at(offset)} {reason}"
                )
            # A follower may be behind. The leader names no replica to a client without a rack.
            self._rack = ""
            return _Unserved(f"a replica does not have the offset {reason}")
        if code in _UNKNOWN:
            return _UnknownPartition(f"the partition is unknown {reason}")
        if code is ErrorCode.corrupt_message:
            return CorruptRecordError(f"a broker's records are damaged {self._at(offset)} {reason}")
        if code.retriable or code is ErrorCode.unknown_server_error:
            return _Unserved(f"a broker does not host the partition {reason}")
        return RejectedError(f"brokers refuse the read {self._at(offset)} {reason}")

    def _check_exists(self, error: Exception, heard_s: float) -> None:
        """Raise OffsetOutOfRangeError if the partition has been unknown for too long to be new."""
        is_unknown = isinstance(error, _UnknownPartition)
        if is_unknown and self._clock.monotonic_s() - heard_s > _UNKNOWN_TOPIC_S:
            raise OffsetOutOfRangeError(
                f"brokers no longer have the partition topic={self._place.topic}"
                f" partition={self._place.partition} reason={str(error)!r}"
            ) from error

    def _connect(self) -> _Link:
        """A connection to the leader. Raises _Unserved if there is none."""
        failure: RetriableError | None = None
        for address in dict.fromkeys([*self._nodes.values(), *self._addresses]):
            try:
                link = self._opened(address)
            except (PeerDisconnectedError, PeerTimeoutError) as error:
                failure = error
                continue
            try:
                leader = self._leader(link)
            except BaseException:
                link.close()
                raise
            if link.address != self._nodes[leader]:
                link.close()
                link = self._opened(self._nodes[leader])
            link.node, link.is_leader = leader, True
            self._link = link
            return link
        # It finds the cause, and names each address.
        check_brokers(self._properties)
        raise failure or NotLeaderOrFollowerError("no broker is named")

    def _move(self, node: BrokerId) -> None:
        """Go on at the replica that the leader prefers for this client."""
        address = self._nodes.get(node)
        self.close()
        if address is None:
            raise _Unserved(f"the preferred replica is unknown node_id={node}")
        try:
            self._link = self._opened(address)
        except (PeerDisconnectedError, PeerTimeoutError):
            self._rack = ""
            raise
        self._link.node = node

    def _opened(self, address: NodeAddress) -> _Link:
        timeout_s = max(_SOCKET_TIMEOUT_MIN_S, self._settings.timeout_ms / 1000)
        timeout_s = min(_SOCKET_TIMEOUT_MAX_S, timeout_s)
        connection = NodeConnection(
            address,
            client_id=self._client_id,
            connect_timeout_s=timeout_s,
            request_timeout_s=timeout_s,
            response_bytes_max=_RESPONSE_BYTES_MAX,
            security=self._security,
            clock=self._clock,
        )
        connection.open()
        return _Link(connection)

    def _leader(self, link: _Link) -> BrokerId:
        link.start(
            ApiKey.METADATA,
            _METADATA_VERSION,
            {
                "topics": [{"name": self._place.topic}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        answer = link.finish()
        self._nodes = {
            broker.node_id: NodeAddress(broker.host, broker.port) for broker in answer.brokers
        }
        (topic,) = answer.topics
        partitions = {partition.partition_index: partition for partition in topic.partitions}
        partition = partitions.get(self._place.partition)
        code = topic.error_code if partition is None else partition.error_code
        reason = f"reason={code.name.upper()} peer={link.address}"
        if partition is None and (code in _UNKNOWN or code is ErrorCode.none):
            raise _UnknownPartition(f"the partition is unknown {reason}")
        if partition is None and not code.retriable:
            raise RejectedError(f"brokers refuse the read topic={self._place.topic} {reason}")
        if partition is None or partition.leader_id not in self._nodes:
            raise _Unserved(f"the partition has no leader {reason}")
        return int(partition.leader_id)

    def _at(self, offset: Offset) -> str:
        return f"topic={self._place.topic} partition={self._place.partition} offset={offset}"


@dataclass(slots=True)
class _Link:
    """A connection to one broker, and what this broker is to the partition."""

    connection: NodeConnection
    node: BrokerId = _NO_BROKER
    is_leader: bool = False

    @property
    def address(self) -> NodeAddress:
        return self.connection.address

    def start(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> None:
        self.connection.start(entity_of(request_class(key, version), fields))

    def finish(self) -> Any:
        return self.connection.finish()

    def close(self) -> None:
        self.connection.close()
