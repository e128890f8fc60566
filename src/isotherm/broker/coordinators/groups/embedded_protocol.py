"""The consumer protocol that is embedded in the classic protocol: subscriptions and assignments of
consumers. The classic protocol treats them as opaque bytes.

    subscription  version i16 | topics | user data | 1 owned partitions | 2 generation | 3 rack
    assignment    version i16 | partitions by topic | user data

An unknown version is read as the newest known version, because Kafka only adds fields at the end.
Source: Kafka ConsumerProtocol.java, ConsumerProtocolSubscription.json.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from kio.schema.consumer_protocol_assignment.v0 import data as assignment_v0
from kio.schema.consumer_protocol_subscription.v0 import data as subscription_v0
from kio.schema.consumer_protocol_subscription.v1 import data as subscription_v1
from kio.schema.consumer_protocol_subscription.v2 import data as subscription_v2
from kio.schema.consumer_protocol_subscription.v3 import data as subscription_v3
from kio.schema.types import TopicName
from kio.static.primitive import i32

from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError
from isotherm.types import TopicPartition

_VERSION = struct.Struct(">h")
_SUBSCRIPTIONS: tuple[type[Any], ...] = (
    subscription_v0.ConsumerProtocolSubscription,
    subscription_v1.ConsumerProtocolSubscription,
    subscription_v2.ConsumerProtocolSubscription,
    subscription_v3.ConsumerProtocolSubscription,
)
_ASSIGNMENT_VERSION_MAX = 3


class Subscription(NamedTuple):
    """`owned` are the partitions that the consumer still owns; empty for versions before 1, which
    lack the field."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None


def read_subscription(metadata: bytes) -> Subscription:
    """Decode a consumer's join metadata. Raises ProtocolError."""
    version = min(_version_of(metadata), len(_SUBSCRIPTIONS) - 1)
    subscription, _ = decoder(_SUBSCRIPTIONS[version])(metadata, _VERSION.size)
    return Subscription(
        frozenset(subscription.topics),
        _partitions(getattr(subscription, "owned_partitions", ())),
        getattr(subscription, "rack_id", None),
    )


def read_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The assigned partitions; empty for a member without an assignment. Raises ProtocolError."""
    if not assignment:
        return ()
    _version_of(assignment)
    decoded, _ = decoder(assignment_v0.ConsumerProtocolAssignment)(assignment, _VERSION.size)
    return _partitions(decoded.assigned_partitions)


def write_assignment(partitions: Iterable[TopicPartition], metadata: bytes) -> bytes:
    """Encode an assignment in the version of the consumer's subscription."""
    try:
        version = min(_version_of(metadata), _ASSIGNMENT_VERSION_MAX)
    except ProtocolError:
        version = 0
    by_topic = itertools.groupby(sorted(partitions), key=lambda partition: partition.topic)
    assignment = assignment_v0.ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            assignment_v0.TopicPartition(
                topic=TopicName(topic),
                partitions=tuple(i32(partition.partition) for partition in of_topic),
            )
            for topic, of_topic in by_topic
        )
    )
    out = bytearray(_VERSION.pack(version))
    encoder(assignment_v0.ConsumerProtocolAssignment)(assignment, out)
    return bytes(out)


def _version_of(buffer: bytes) -> int:
    if len(buffer) < _VERSION.size:
        raise ProtocolError(f"the embedded protocol has no version size={len(buffer)}")
    version: int = _VERSION.unpack_from(buffer)[0]
    if version < 0:
        raise ProtocolError(f"unknown version of the embedded protocol version={version}")
    return version


def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions
    )
