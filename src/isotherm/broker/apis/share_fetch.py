"""ShareFetch (key 78).

Versions  1-2. 2 acquisition of an exact number of records, renewals of locks
Behaviour Acquires records for a member of a share group, and acknowledges others. A share session
          has the partitions (isotherm.broker.share_partitions.share_sessions); membership is not
          checked, as in Kafka. Waits for min.bytes, at most for max.wait. One member reads a
          partition at a time. Partitions come first in turn. Records that are only in the remote
          tier are read as for Fetch. A request with renewals fetches nothing. As in Kafka a request
          that begins a session which has no room waits for max.wait before it is refused.
Not done  -
KIPs      932 · 1206 record limit · 1222 renewals
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.share_requests import (
    FIRST_RENEWAL_VERSION,
    NO_HINTS,
    AcknowledgeAnswer,
    Acknowledging,
    begin_acknowledgements,
    checked_member,
    key_of,
    leader_hints,
    readable_topics,
    share_access,
    topic_name,
    why_unknown,
)
from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.error_mapping import error_code
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api, Charge
from isotherm.broker.share_partitions.delivery_settings import DeliverySettings
from isotherm.broker.share_partitions.share_fetch import (
    FetchBounds,
    FetchedPartition,
    RemoteTierReads,
    ShareFetch,
)
from isotherm.broker.share_partitions.share_partition import Member
from isotherm.broker.share_partitions.share_sessions import (
    FINAL_EPOCH,
    MemberKey,
    ShareFetchContext,
)
from isotherm.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    IsothermError,
    ShareSessionLimitReachedError,
)
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.share_fetch import (
    NO_CURRENT_LEADER,
    ShareFetchPartitionResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopicResponse,
)

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1

_NOTHING = Acknowledging({}, {}, {}, {})
_NO_ANSWER = FetchedPartition()
_NOT_ACKNOWLEDGED = AcknowledgeAnswer()


class _Fetching(NamedTuple):
    """A fetch that has begun, with the answers that are there. `names` has the topics of the
    partitions that are fetched, which count for metrics. Without `share_fetch` nothing is read
    any more."""

    answers: dict[SharePartitionKey, FetchedPartition]
    names: dict[SharePartitionKey, str]
    share_fetch: ShareFetch | None


def handle(
    context: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse | Awaitable[ShareFetchResponse]:
    member = checked_member(context, request)
    is_renewal = context.header.api_version >= FIRST_RENEWAL_VERSION and request.is_renew_ack
    if is_renewal:
        _check_fetches_nothing(request)
    if _acquire_mode(context, request) not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise InvalidRequestError(
            f"there is no such acquire mode share_acquire_mode={request.share_acquire_mode}"
        )
    has_acknowledgements = any(
        entry.acknowledgement_batches for topic in request.topics for entry in topic.partitions
    )
    try:
        fetch = _session_fetch(context, member, request, has_acknowledgements=has_acknowledgements)
    except ShareSessionLimitReachedError as error:
        return _refused_later(_wait_s(request), error)
    named = {topic_name(context, topic.topic_id) for topic in request.topics if topic.topic_id}
    names = {name for name in (*fetch.partitions.values(), *named) if name is not None}
    readable = readable_topics(context, names)
    settings = context.services.share_partitions.settings_of(member.group_id)
    acknowledging = _NOTHING
    if has_acknowledgements:
        acknowledging = begin_acknowledgements(context, member, request, readable, settings)
    fetching = _Fetching({}, {}, None)
    try:
        if not is_renewal:
            fetching = _begin(context, member, request, fetch, readable, settings)
    finally:
        # As in Kafka a request does not acquire what it releases.
        acknowledging.write(context.services.share_partitions)

    def respond() -> ShareFetchResponse:
        _count_failures(context, fetching)
        acknowledged = acknowledging.finished(context)
        response = _response(context, settings, fetch, fetching.answers, acknowledged)
        if request.share_session_epoch == FINAL_EPOCH:
            context.services.share_partitions.end_session(member)
        return response

    # Most requests are answered in one step: a task and its turns of the loop cost as much as what
    # they would do here.
    if fetching.share_fetch is None and not acknowledging.writes:
        return respond()
    return _respond_later(context, member, fetching, acknowledging, respond)


async def _respond_later(
    context: RequestContext,
    member: MemberKey,
    fetching: _Fetching,
    acknowledging: Acknowledging,
    respond: Callable[[], ShareFetchResponse],
) -> ShareFetchResponse:
    if fetching.share_fetch is not None:
        services = context.services
        fetching.answers.update(await fetching.share_fetch.run())
        wait_s = services.clock.monotonic_s() - context.arrived_s
        services.share_partitions.note_fetch(member.group_id, fetching.share_fetch, wait_s * 1000)
    await acknowledging.written()
    return respond()


async def _refused_later(wait_s: float, error: ShareSessionLimitReachedError) -> ShareFetchResponse:
    await asyncio.sleep(wait_s)  # noqa: TID251 - the client would ask again at once
    raise error


def _check_fetches_nothing(request: ShareFetchRequest) -> None:
    """Raise InvalidRequestError: the locks could end while the request waits for records."""
    bounds = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait_ms,
    }
    set_bounds = [name for name, value in bounds.items() if value]
    if set_bounds:
        raise InvalidRequestError(f"renewals fetch nothing, so {', '.join(set_bounds)} must be 0")


def _acquire_mode(context: RequestContext, request: ShareFetchRequest) -> int:
    if context.header.api_version < FIRST_RENEWAL_VERSION:
        return BATCH_OPTIMIZED
    return int(request.share_acquire_mode)


def _wait_s(request: ShareFetchRequest) -> float:
    return max(0, request.max_wait_ms) / 1000


def _session_fetch(
    context: RequestContext,
    member: MemberKey,
    request: ShareFetchRequest,
    *,
    has_acknowledgements: bool,
) -> ShareFetchContext:
    manager = context.services.share_partitions
    added = {
        key_of(member.group_id, topic.topic_id, entry.partition_index): (
            None if topic.topic_id is None else topic_name(context, topic.topic_id)
        )
        for topic in request.topics
        for entry in topic.partitions
    }
    forgotten = [
        key_of(member.group_id, topic.topic_id, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    connection = context.connection
    fetch = manager.sessions.fetch(
        member,
        request.share_session_epoch,
        added,
        forgotten,
        connection,
        has_acknowledgements=has_acknowledgements,
    )
    if connection is not None and manager.sessions.of_connection(connection):
        connection.when_closed(manager.connection_closed)
    return fetch


def _begin(
    context: RequestContext,
    member: MemberKey,
    request: ShareFetchRequest,
    fetch: ShareFetchContext,
    readable: Collection[str],
    settings: DeliverySettings,
) -> _Fetching:
    """Fetch the session's partitions, in one step if that is possible."""
    services = context.services
    manager = services.share_partitions
    answers: dict[SharePartitionKey, FetchedPartition] = {}
    share_partitions = []
    begun: dict[SharePartitionKey, str] = {}
    max_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
    # As in Kafka nothing begins for a member that takes no records.
    fetches_records = max_bytes > 0 and request.max_records > 0
    for key in fetch.rotated():
        name = fetch.partitions[key]
        code = why_unknown(context, key, name, readable)
        if code is not None or name is None:
            answers[key] = FetchedPartition(code or ErrorCode.unknown_topic_id)
        elif fetches_records:
            begun[key] = name
            try:
                share_partitions.append(manager.get_or_begin(key))
            except IsothermError as error:
                answers[key] = FetchedPartition(error_code(error))
    for name in set(begun.values()):
        services.traffic.topics[name].total_share_fetch_requests += 1
    if not share_partitions:
        return _Fetching(answers, begun, None)
    max_bytes = services.answers.room(max_bytes)
    share_fetch = ShareFetch(
        Member(
            member.member_id,
            max(1, request.batch_size),
            _acquire_mode(context, request) == RECORD_LIMIT,
        ),
        share_partitions,
        FetchBounds(
            max_bytes, min(request.min_bytes, max_bytes), _wait_s(request), request.max_records
        ),
        settings,
        services.replica_manager.purgatory,
        _remote_reads(context),
    )
    at_once = share_fetch.answers_at_once()
    if at_once is None:
        return _Fetching(answers, begun, share_fetch)
    answers.update(at_once)
    manager.note_fetch(member.group_id, share_fetch, 0)
    return _Fetching(answers, begun, None)


def _count_failures(context: RequestContext, fetching: _Fetching) -> None:
    failed = [
        name
        for key, name in fetching.names.items()
        if fetching.answers.get(key, _NO_ANSWER).error_code
    ]
    for topic in context.services.traffic.existing(failed):
        topic.failed_share_fetch_requests += 1


def _remote_reads(context: RequestContext) -> RemoteTierReads | None:
    services = context.services
    if services.remote_log_manager is None:
        return None
    return RemoteTierReads(
        services.remote_log_manager.readers,
        services.config.remote.remote_fetch_max_wait_ms / 1000,
    )


def _response(
    context: RequestContext,
    settings: DeliverySettings,
    fetch: ShareFetchContext,
    answers: Mapping[SharePartitionKey, FetchedPartition],
    acknowledged: Mapping[SharePartitionKey, AcknowledgeAnswer],
) -> ShareFetchResponse:
    code = ErrorCode.none
    try:
        sent = fetch.answered(answers)
    except InvalidShareSessionEpochError as error:
        sent, code = {}, error_code(error)
    failed = {key: answer.error_code for key, answer in sent.items() if answer.error_code}
    hints = leader_hints(context, failed) if failed else NO_HINTS
    topics: dict[uuid.UUID, list[ShareFetchPartitionResponse]] = {}
    for key in (*sent, *(key for key in acknowledged if key not in sent)):
        answer = sent.get(key, _NO_ANSWER)
        acknowledgement = acknowledged.get(key, _NOT_ACKNOWLEDGED)
        partition = ShareFetchPartitionResponse(
            key.partition,
            answer.error_code,
            acknowledgement.error_code,
            acknowledgement.error_message,
            answer.records,
            answer.acquired,
            hints.leaders.get(key, NO_CURRENT_LEADER),
        )
        topics.setdefault(key.topic_id, []).append(partition)
        _count_bytes(context, key, answer)
    return ShareFetchResponse(
        [ShareFetchTopicResponse(topic_id, partitions) for topic_id, partitions in topics.items()],
        code,
        settings.record_lock_duration_ms,
        node_endpoints=hints.endpoints,
    )


def _count_bytes(context: RequestContext, key: SharePartitionKey, answer: FetchedPartition) -> None:
    if answer.records and (name := topic_name(context, key.topic_id)) is not None:
        context.services.traffic.topics[name].bytes_out += sum(map(len, answer.records))


def _refuse(
    context: RequestContext, request: ShareFetchRequest, code: ErrorCode
) -> ShareFetchResponse:
    return ShareFetchResponse((), code)


API = Api(
    ApiKey.SHARE_FETCH,
    VersionRange(1, 2),
    handle,
    access=share_access(
        topics=["topics/topic_id", "forgotten_topics_data/topic_id"],
        shows=["responses/topic_id"],
        unchecked={"responses/partitions/acknowledge_error_message": "of the member's own records"},
    ),
    charge=Charge.FETCHED_BYTES,
    refuse_by=_refuse,
)
