"""Incremental fetch sessions (KIP-227): a consumer sends its partitions once, then only changes.

    epoch 0     a full request that creates a session; a session that it names is closed
    epoch n>0   an incremental request with new, changed and forgotten partitions; the response
                has partitions with records, an error, a diverging epoch, or a high watermark or
                log start that the client does not know yet
    epoch -1    a full request without a session; a session that it names is closed

Pure: no clock and no I/O, the time is a parameter. Event loop thread only.

Invariants:
- A session's epoch is the one that its next request must have.
- Partitions of a session are read in its order. A partition that returned records moves to the
  end, so that none starves under the request's max bytes.
- There are at most `slots_max` sessions, with `partitions_max` partitions in total. A session that
  does not fit is not created: the client gets id 0 and sends full requests.

Source: Kafka FetchSession.scala, FetchManager.newContext.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FIRST_TOPIC_ID_VERSION,
    NO_REPLICA,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.types import Offset, TimestampMs

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1

INT32_MAX = 2**31 - 1

_UNKNOWN_OFFSET = -1


class PartitionKey(NamedTuple):
    """Name of the topic, or its id from version 13 on, as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partition: int


AskedPartitions: TypeAlias = Mapping[PartitionKey, FetchPartition]


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`. It wraps to 1, since 0 creates a session."""
    return epoch + 1 if epoch < INT32_MAX else 1


@dataclass(slots=True)
class SessionPartition:
    """The client's request for a partition, and what the last responses contained."""

    asked: FetchPartition
    high_watermark: Offset = _UNKNOWN_OFFSET
    log_start_offset: Offset = _UNKNOWN_OFFSET

    def note_response(self, response: FetchPartitionResponse) -> bool:
        """Whether the client needs this response. It is recorded as known to the client.

        After an error or a divergence the next successful response is needed in any case.
        """
        is_special = bool(response.error_code) or response.diverging_epoch is not None
        is_news = (
            is_special
            or response.preferred_read_replica != NO_REPLICA
            or any(map(len, response.records))
            or response.high_watermark != self.high_watermark
            or response.log_start_offset != self.log_start_offset
        )
        self.high_watermark = _UNKNOWN_OFFSET if is_special else response.high_watermark
        self.log_start_offset = response.log_start_offset
        return is_news


@dataclass(slots=True)
class FetchSession:
    session_id: int
    is_privileged: bool
    uses_topic_ids: bool
    created_ms: TimestampMs
    partitions: dict[PartitionKey, SessionPartition]
    epoch: int = next_epoch(INITIAL_EPOCH)
    last_used_ms: TimestampMs = 0
    counted_size: int = 0
    is_evictable_by_all: bool = False
    is_evictable_by_privileged: bool = False

    def update(self, asked: AskedPartitions, forgotten: Iterable[PartitionKey]) -> None:
        for key, partition in asked.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = SessionPartition(partition)
            else:
                known.asked = partition
        for key in forgotten:
            self.partitions.pop(key, None)


class FetchContext(Protocol):
    """One request: what to read, and how to build the response."""

    @property
    def asked(self) -> AskedPartitions: ...

    def respond(
        self, responses: Sequence[FetchPartitionResponse], now_ms: TimestampMs
    ) -> FetchResponse:
        """`responses` are the results of `asked`, in its order."""


@dataclass(frozen=True, slots=True)
class SessionlessFetch:
    asked: AskedPartitions

    def respond(
        self, responses: Sequence[FetchPartitionResponse], now_ms: TimestampMs
    ) -> FetchResponse:
        return FetchResponse(_by_topic(zip(self.asked, responses, strict=True)))


@dataclass(frozen=True, slots=True)
class FailedSessionFetch:
    error: ErrorCode
    asked: AskedPartitions = field(default_factory=dict)

    def respond(
        self, responses: Sequence[FetchPartitionResponse], now_ms: TimestampMs
    ) -> FetchResponse:
        return FetchResponse((), error_code=self.error)


@dataclass(frozen=True, slots=True)
class FullFetch:
    """Creates a session with its response, if there is room."""

    asked: AskedPartitions
    cache: FetchSessionCache
    is_privileged: bool
    uses_topic_ids: bool

    def respond(
        self, responses: Sequence[FetchPartitionResponse], now_ms: TimestampMs
    ) -> FetchResponse:
        answered = list(zip(self.asked, responses, strict=True))
        session_id = self.cache.open_session(self, responses, now_ms)
        return FetchResponse(_by_topic(answered), session_id=session_id)


@dataclass(frozen=True, slots=True)
class IncrementalFetch:
    session: FetchSession
    epoch: int
    asked: AskedPartitions

    def respond(
        self, responses: Sequence[FetchPartitionResponse], now_ms: TimestampMs
    ) -> FetchResponse:
        """INVALID_FETCH_SESSION_EPOCH if another connection has used the session meanwhile."""
        session = self.session
        if session.epoch != next_epoch(self.epoch):
            error = ErrorCode.invalid_fetch_session_epoch
            return FetchResponse((), error_code=error, session_id=session.session_id)
        sent = []
        for key, response in zip(self.asked, responses, strict=True):
            partition = session.partitions[key]
            if not partition.note_response(response):
                continue
            sent.append((key, response))
            if any(map(len, response.records)):
                # To the end of the session's order: other partitions come first next time.
                session.partitions[key] = session.partitions.pop(key)
        return FetchResponse(_by_topic(sent), session_id=session.session_id)


def _by_topic(
    answered: Iterable[tuple[PartitionKey, FetchPartitionResponse]],
) -> list[FetchTopicResponse]:
    """Groups adjacent partitions of one topic. The order of partitions is kept."""
    return [
        FetchTopicResponse(name, topic_id, [response for _, response in group])
        for (name, topic_id), group in itertools.groupby(answered, lambda item: item[0][:2])
    ]


class FetchSessionCache:
    """The sessions of this broker, and the rules for evicting them.

    Any session may evict one that was unused for longer than `eviction_ms`. A larger one may evict
    one that is older than that. A follower's (privileged) session may evict a consumer's at any
    age.
    """

    def __init__(
        self, rng: random.Random, *, slots_max: int, eviction_ms: int, partitions_max: int
    ) -> None:
        self._rng = rng
        self._slots_max = slots_max
        self._eviction_ms = eviction_ms
        self._partitions_max = partitions_max
        self._partition_count = 0
        # In the order of last use, oldest first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def context(self, request: FetchRequest, version: int, now_ms: TimestampMs) -> FetchContext:
        """The context that reads and answers `request`."""
        asked = _asked(request)
        uses_topic_ids = version >= FIRST_TOPIC_ID_VERSION
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return SessionlessFetch(asked)
            is_privileged = request.replica_id > CONSUMER_REPLICA_ID
            return FullFetch(asked, self, is_privileged, uses_topic_ids)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FailedSessionFetch(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            return FailedSessionFetch(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            return FailedSessionFetch(ErrorCode.fetch_session_topic_id_error)
        return self._go_on(session, request, asked, now_ms)

    def _go_on(
        self,
        session: FetchSession,
        request: FetchRequest,
        asked: AskedPartitions,
        now_ms: TimestampMs,
    ) -> FetchContext:
        session.update(asked, _forgotten(request))
        if not session.partitions:
            self._close(session.session_id)
            return SessionlessFetch(asked={})
        self._touch(session, now_ms)
        if self._partition_count > self._partitions_max:
            # The client creates a new session, if that fits.
            self._close(session.session_id)
            return FailedSessionFetch(ErrorCode.fetch_session_id_not_found)
        session.epoch = next_epoch(session.epoch)
        everything = {key: partition.asked for key, partition in session.partitions.items()}
        return IncrementalFetch(session, request.session_epoch, everything)

    def open_session(
        self,
        fetch: FullFetch,
        responses: Sequence[FetchPartitionResponse],
        now_ms: TimestampMs,
    ) -> int:
        """The new session's id; NO_SESSION_ID if it is empty or there is no room for it."""
        size = len(fetch.asked)
        if not size or not self._make_room(size, now_ms, is_privileged=fetch.is_privileged):
            return NO_SESSION_ID
        session_id = self._new_id()
        partitions = {}
        for (key, asked), response in zip(fetch.asked.items(), responses, strict=True):
            partitions[key] = SessionPartition(asked)
            partitions[key].note_response(response)
        session = FetchSession(
            session_id, fetch.is_privileged, fetch.uses_topic_ids, now_ms, partitions
        )
        self._sessions[session_id] = session
        self._touch(session, now_ms)
        return session_id

    def _new_id(self) -> int:
        while True:
            # Random, so that a client with an old id does not hit another client's session.
            session_id = self._rng.randint(1, INT32_MAX)
            if session_id not in self._sessions:
                return session_id

    def _touch(self, session: FetchSession, now_ms: TimestampMs) -> None:
        # Moved to the end: the dict is in the order of last use.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        session.last_used_ms = now_ms
        self._partition_count += len(session.partitions) - session.counted_size
        session.counted_size = len(session.partitions)
        is_old = now_ms - session.created_ms > self._eviction_ms
        session.is_evictable_by_all = is_old
        session.is_evictable_by_privileged = is_old or not session.is_privileged

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= session.counted_size

    def _make_room(self, size: int, now_ms: TimestampMs, *, is_privileged: bool) -> bool:
        if not self._slots_max or self._partition_count + size > self._partitions_max:
            return False
        if len(self._sessions) < self._slots_max:
            return True
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > self._eviction_ms:
            self._close(oldest.session_id)
            return True
        least = self._least_evictable(is_privileged=is_privileged)
        if least is None or (is_privileged, size, NO_SESSION_ID) < _worth(least):
            return False
        self._close(least.session_id)
        return True

    def _least_evictable(self, *, is_privileged: bool) -> FetchSession | None:
        evictable = (
            session
            for session in self._sessions.values()
            if (
                session.is_evictable_by_privileged if is_privileged else session.is_evictable_by_all
            )
        )
        return min(evictable, key=_worth, default=None)


def _worth(session: FetchSession) -> tuple[bool, int, int]:
    return session.is_privileged, session.counted_size, session.session_id


def _asked(request: FetchRequest) -> AskedPartitions:
    """The requested partitions. Of a duplicate the last one counts."""
    return {
        PartitionKey(topic.name, topic.topic_id, asked.partition): asked
        for topic in request.topics
        for asked in topic.partitions
    }


def _forgotten(request: FetchRequest) -> Iterable[PartitionKey]:
    for topic in request.forgotten_topics:
        for partition in topic.partitions:
            yield PartitionKey(topic.name, topic.topic_id, partition)
