"""What ShareFetch and ShareAcknowledge have in common: their checks, and acknowledgements.

Source: Kafka KafkaApis.handleAcknowledgements, validateAcknowledgementBatches.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.share_version import MEMBER_ID_LENGTH_MAX
from isotherm.broker.coordinators.shares.share_state_records import NO_TOPIC_ID, SharePartitionKey
from isotherm.broker.error_mapping import error_code, error_message
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.features import SHARE_VERSION_FEATURE
from isotherm.broker.server.requests.access_checks import on_group, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.current_leader import LEADER_ERRORS, current_leader
from isotherm.broker.server.requests.guarding import refusal_of_request
from isotherm.broker.server.requests.served_api import Access
from isotherm.broker.share_partitions.acknowledgement import Acknowledgement, AcknowledgeType
from isotherm.broker.share_partitions.delivery_settings import DeliverySettings
from isotherm.broker.share_partitions.share_partition_manager import (
    BegunAcknowledgement,
    SharePartitionManager,
)
from isotherm.broker.share_partitions.share_sessions import MemberKey
from isotherm.broker.shared_futures import results_of
from isotherm.errors import InvalidRequestError, IsothermError, UnsupportedVersionError
from isotherm.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint

FIRST_RENEWAL_VERSION = 2

_GROUP = on_group(Operation.READ)


def _guard(authorizer: Any, api: Any, context: RequestContext, request: Any) -> Any:
    """The group is checked before the handler; the handler checks the topics, since a request of a
    session does not name all that it fetches."""
    if request.group_id is not None:
        code = refusal_of_request(authorizer, context, request, _GROUP)
        if code is not None:
            return api.refuse(context, request, code)
    return api.handle(context, request)


def share_access(
    *, topics: Sequence[str], shows: Sequence[str], unchecked: Mapping[str, str] | None = None
) -> Access:
    checks = [_GROUP, on_topics(Operation.READ, topics, shows=shows)]
    return Access(checks, guard=_guard, unchecked=unchecked or {})


def checked_member(context: RequestContext, request: Any) -> MemberKey:
    """Who asks. Raises UnsupportedVersionError without `share.version`, and InvalidRequestError."""
    if not context.services.metadata.image.features.get(SHARE_VERSION_FEATURE):
        raise UnsupportedVersionError(f"share groups are off feature={SHARE_VERSION_FEATURE}")
    if request.group_id is None:
        raise InvalidRequestError("the request has no group id")
    if not request.member_id or len(request.member_id) > MEMBER_ID_LENGTH_MAX:
        raise InvalidRequestError(
            f"a member id has 1 to {MEMBER_ID_LENGTH_MAX} characters group_id={request.group_id}"
        )
    return MemberKey(request.group_id, request.member_id)


def topic_name(context: RequestContext, topic_id: uuid.UUID) -> str | None:
    topic = context.services.metadata.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def key_of(group_id: str, topic_id: uuid.UUID | None, partition: int) -> SharePartitionKey:
    return SharePartitionKey(group_id, topic_id or NO_TOPIC_ID, partition)


def readable_topics(context: RequestContext, names: Collection[str]) -> Collection[str]:
    """The topics that the client may read."""
    authorizer = context.services.authorizer
    if authorizer is None or not names:
        return names
    return authorizer.allowed(context, Operation.READ, ResourceType.TOPIC, names)


def why_unknown(
    context: RequestContext, key: SharePartitionKey, name: str | None, readable: Collection[str]
) -> ErrorCode | None:
    """The error of a partition that is unknown or may not be read; None for another one. `name` is
    that under which the request or the session knows the topic."""
    if name is None:
        return ErrorCode.unknown_topic_id
    if name not in readable:
        return ErrorCode.topic_authorization_failed
    topic = context.services.metadata.image.topic(name)
    if topic is None or not 0 <= key.partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return None


class AcknowledgeAnswer(NamedTuple):
    error_code: int = 0
    error_message: str | None = None


_SUCCESS = AcknowledgeAnswer()


class Acknowledging(NamedTuple):
    """Acknowledgements of a request: their answers, those that have begun, and the writes under
    way. `names` has the topics of those that a share partition was given, which count for
    metrics."""

    answers: dict[SharePartitionKey, AcknowledgeAnswer]
    begun: dict[SharePartitionKey, BegunAcknowledgement]
    writes: dict[SharePartitionKey, asyncio.Future[None]]
    names: dict[SharePartitionKey, str]

    def write(self, manager: SharePartitionManager) -> None:
        """Write what has begun, or begin to write it."""
        for key, begun in self.begun.items():
            write = manager.write(begun)
            if write is None:
                self.answers[key] = _SUCCESS
            else:
                self.writes[key] = write
        self.begun.clear()

    async def written(self) -> None:
        """Return when no write is under way."""
        for key, error in (await results_of(self.writes)).items():
            self.answers[key] = _SUCCESS if error is None else _failure(error)
        self.writes.clear()

    def finished(self, context: RequestContext) -> dict[SharePartitionKey, AcknowledgeAnswer]:
        """The answers, once nothing waits for a write."""
        failed = [name for key, name in self.names.items() if self.answers[key].error_code]
        for topic in context.services.traffic.existing(failed):
            topic.failed_share_acknowledgement_requests += 1
        return self.answers


def _failure(error: IsothermError) -> AcknowledgeAnswer:
    return AcknowledgeAnswer(error_code(error), error_message(error))


def begin_acknowledgements(
    context: RequestContext,
    member: MemberKey,
    request: Any,
    readable: Collection[str],
    settings: DeliverySettings,
) -> Acknowledging:
    """Acknowledge the records that `request` names. Their state is changed at once; the caller
    writes it before its step of the event loop ends."""
    manager = context.services.share_partitions
    version = context.header.api_version
    is_renewal = version >= FIRST_RENEWAL_VERSION and request.is_renew_ack
    type_max = AcknowledgeType.RENEW if version >= FIRST_RENEWAL_VERSION else AcknowledgeType.REJECT
    acknowledging = Acknowledging({}, {}, {}, {})
    without_batches: list[SharePartitionKey] = []
    is_any_asked = False
    for key, entry in _entries(request):
        name = topic_name(context, key.topic_id)
        if name is None:
            acknowledging.answers[key] = AcknowledgeAnswer(ErrorCode.unknown_topic_id)
        elif not _is_valid(entry.acknowledgement_batches, type_max, is_renewal=is_renewal):
            acknowledging.answers[key] = AcknowledgeAnswer(ErrorCode.invalid_request)
        elif (code := why_unknown(context, key, name, readable)) is not None:
            acknowledging.answers[key] = AcknowledgeAnswer(code)
        elif not entry.acknowledgement_batches:
            without_batches.append(key)
        else:
            acknowledgements = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in entry.acknowledgement_batches
            ]
            is_any_asked = True
            acknowledging.names[key] = name
            try:
                acknowledging.begun[key] = manager.begin_acknowledgement(
                    member, key, acknowledgements, settings
                )
            except IsothermError as error:
                acknowledging.answers[key] = _failure(error)
    for name in set(acknowledging.names.values()):
        context.services.traffic.topics[name].total_share_acknowledgement_requests += 1
    # As in Kafka they are answered beside others alone.
    if is_any_asked:
        acknowledging.answers.update(dict.fromkeys(without_batches, _SUCCESS))
    return acknowledging


def _entries(request: Any) -> list[tuple[SharePartitionKey, Any]]:
    """The partitions of a request. If one occurs twice, the last entry counts."""
    entries = {
        key_of(request.group_id, topic.topic_id, entry.partition_index): entry
        for topic in request.topics
        for entry in topic.partitions
    }
    return list(entries.items())


def _is_valid(batches: Sequence[Any], type_max: int, *, is_renewal: bool) -> bool:
    end = -1
    for batch in batches:
        types = batch.acknowledge_types
        size = batch.last_offset - batch.first_offset + 1
        if size < 1 or batch.first_offset < end or not types:
            return False
        if len(types) > 1 and len(types) != size:
            return False
        if min(types) < 0 or max(types) > type_max:
            return False
        if AcknowledgeType.RENEW in types and not is_renewal:
            return False
        end = batch.last_offset
    return True


class LeaderHints(NamedTuple):
    """Where clients go on, by partition (KIP-951)."""

    leaders: Mapping[SharePartitionKey, LeaderIdAndEpoch]
    endpoints: Sequence[NodeEndpoint]


NO_HINTS = LeaderHints({}, ())


def leader_hints(context: RequestContext, codes: Mapping[SharePartitionKey, int]) -> LeaderHints:
    """The leaders of the partitions that another broker leads, from the partitions' errors."""
    leaders, endpoints = {}, {}
    for key, code in codes.items():
        if code in LEADER_ERRORS:
            name = topic_name(context, key.topic_id)
            hint = current_leader(context, name, key.topic_id, key.partition)
            leaders[key] = hint.leader
            if hint.endpoint is not None:
                endpoints[hint.endpoint.node_id] = hint.endpoint
    return LeaderHints(leaders, tuple(endpoints.values()))
