"""The inputs and outputs of the classic group state machine: requests, answers and effects.

A request may be answered in the same step or in a later one. `reply` is an opaque object of the
caller: the state machine returns it with the answer. Each request is answered exactly once.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.errors import ErrorCode

from isotherm.protocol.codec import decoder
from isotherm.protocol.errors import ProtocolError

CONSUMER_PROTOCOL_TYPE = "consumer"
UNKNOWN_GENERATION = -1
NO_MEMBER_ID = ""

Reply: TypeAlias = object


class Protocol(NamedTuple):
    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """A JoinGroup request. `new_member_id` is the id that the member gets if it is new."""

    reply: Reply
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_known_member_id: bool
    supports_skipping_assignment: bool
    new_member_id: str


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    error: ErrorCode
    member_id: str
    generation_id: int = UNKNOWN_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    """A SyncGroup request. The coordinator sets `reply`."""

    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]
    reply: Reply = None


class SyncResult(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Answer(NamedTuple):
    reply: Reply
    result: JoinResult | SyncResult


class StoreGroup(NamedTuple):
    """Write the group's current state to the log, before the answers that follow are sent."""


Effect: TypeAlias = Answer | StoreGroup


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's join metadata (ConsumerProtocolSubscription); None if it is
    malformed.

    Every version begins with the topics and is not flexible, so the oldest schema can read them in
    all versions.
    """
    try:
        subscription, _ = decoder(ConsumerProtocolSubscription)(metadata, 2)
    except ProtocolError:
        return None
    return frozenset(subscription.topics)
