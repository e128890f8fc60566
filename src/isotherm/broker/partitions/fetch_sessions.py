"""Incremental fetch sessions (KIP-227): a client sends its partitions once, then only changes.

    epoch 0     a full request that creates a session; a session that it names is closed
    epoch n>0   an incremental request with new, changed and forgotten partitions; the response
                has partitions with records, an error, a diverging epoch, or a high watermark or
                log start that the client does not know yet
    epoch -1    a full request without a session; a session that it names is closed

Of a consumer's session only the partitions that may have news are read (docs/decisions/0135):

    added ──► unread ──► read to the end, no error ──────────► at rest
                 ▲                                              │
                 └── marked ◄── offsets, leader or log change ──┘  sent again, or new terms: unread

This module has no clock and no I/O: the time is a parameter, and partitions mark their changes.
Event loop thread only, except `FetchSession.marked`.

Invariants:
- A session's epoch is the epoch that its next request must have.
- Partitions are read in the order of their session. A partition that returned records moves to the
  end, so that max.bytes of the request starves none.
- A partition that is neither unread nor marked has no news for the client.
- There are at most `slots_max` sessions with `partitions_max` partitions in total. A session that
  does not fit is not created; the client gets session id 0 and sends full requests.

Source: Kafka FetchSession.scala, FetchManager.newContext.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.principal import Principal
from isotherm.broker.partitions.fetch_reads import PartitionRead
from isotherm.broker.partitions.fetch_target import FetchTarget, PartitionKey
from isotherm.log.log_read import FetchIsolation
from isotherm.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FIRST_TOPIC_ID_VERSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.types import TimestampMs

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1

INT32_MAX = 2**31 - 1

_ORDER = attrgetter("order")

RequestedPartitions: TypeAlias = Mapping[PartitionKey, FetchPartition]


class FetchTerms(NamedTuple):
    """The properties of a request, besides its partitions, on which its answers depend."""

    isolation: FetchIsolation
    leader_only: bool
    principal: Principal
    client_address: str
    acl_version: int


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`. It wraps to 1, since 0 creates a session."""
    return epoch + 1 if epoch < INT32_MAX else 1


@dataclass(slots=True, eq=False)
class FetchSession:
    """A fetch session of one client.

    `unread` has the partitions to read for the next answer. `marked` has the partitions that
    changed since `targets` last looked; any thread adds to it. `terms` are those of the last
    request; None if every request reads all partitions.
    """

    session_id: int
    is_privileged: bool
    uses_topic_ids: bool
    created_ms: TimestampMs
    terms: FetchTerms | None = None
    partitions: dict[PartitionKey, FetchTarget] = field(default_factory=dict)
    unread: set[FetchTarget] = field(default_factory=set)
    marked: set[Any] = field(default_factory=set)
    epoch: int = next_epoch(INITIAL_EPOCH)
    last_used_ms: TimestampMs = 0
    counted_size: int = 0
    is_evictable_by_all: bool = False
    is_evictable_by_privileged: bool = False
    _last_order: int = 0

    def add(self, target: FetchTarget) -> None:
        self._last_order += 1
        target.join(self, self._last_order)
        self.partitions[target.key] = target
        self.unread.add(target)

    def update(self, request: FetchRequest) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                key = PartitionKey(topic.name, topic.topic_id, partition.partition)
                target = self.partitions.get(key)
                if target is None:
                    self.add(FetchTarget(key, partition))
                else:
                    target.request = partition
                    self.unread.add(target)
        for forgotten in request.forgotten_topics:
            for index in forgotten.partitions:
                key = PartitionKey(forgotten.name, forgotten.topic_id, index)
                target = self.partitions.pop(key, None)
                if target is not None:
                    self.unread.discard(target)
                    target.leave()
                    target.session = None

    def targets(self) -> list[FetchTarget]:
        """The partitions to read now, in order."""
        if self.marked:
            # Both operations on the set are atomic in CPython. A mark that is added between them
            # either is in the copy already, and the read that follows sees its change, or stays for
            # the next call.
            marked = self.marked.copy()
            self.marked.difference_update(marked)
            for target in marked:
                if target.session is self:  # not forgotten meanwhile
                    self.unread.add(target)
        return sorted(self.unread, key=_ORDER)

    def news(
        self, targets: Sequence[FetchTarget], answers: Sequence[PartitionRead]
    ) -> list[FetchTopicResponse]:
        """The answers with news for the client. They are recorded as known to it."""
        news_targets, news_answers = [], []
        for target, answer in zip(targets, answers, strict=True):
            if target.note_response(answer.response):
                news_targets.append(target)
                news_answers.append(answer)
            if any(map(len, answer.response.records)):
                # Moved to the end of the session's order, so that other partitions are read first
                # next time.
                self._last_order += 1
                target.order = self._last_order
            elif answer.is_at_end:
                self.unread.discard(target)
        return _by_topic(news_targets, news_answers)

    def close(self) -> None:
        for target in self.partitions.values():
            target.leave()
            target.session = None


class FetchContext(Protocol):
    """One request: its targets, and how its response is built."""

    @property
    def is_empty(self) -> bool:
        """Whether the request has no partitions."""

    def targets(self) -> Sequence[FetchTarget]:
        """The targets to read now. Later calls may return more."""

    def changeable(self) -> Iterable[FetchTarget]:
        """The targets that may have more to read than at their last read, for a request that
        waits.
        """

    @property
    def wait_keys(self) -> Sequence[Hashable]:
        """The purgatory keys that are notified when a target changes."""

    def respond(
        self,
        targets: Sequence[FetchTarget],
        answers: Sequence[PartitionRead],
        now_ms: TimestampMs,
    ) -> FetchResponse:
        """`answers` are the results of `targets`, in their order."""


class _Sessionless:
    """A request that has its targets for itself."""

    __slots__ = ("_targets",)

    def __init__(self, partitions: RequestedPartitions) -> None:
        # A loop, because a comprehension costs a function call in this Python version.
        self._targets: list[FetchTarget] = []
        for key, partition in partitions.items():
            self._targets.append(FetchTarget(key, partition))

    @property
    def is_empty(self) -> bool:
        return not self._targets

    def targets(self) -> Sequence[FetchTarget]:
        return self._targets

    def changeable(self) -> Iterable[FetchTarget]:
        return self._targets

    @property
    def wait_keys(self) -> Sequence[Hashable]:
        return [
            target.partition.topic_partition
            for target in self._targets
            if target.partition is not None
        ]


class SessionlessFetch(_Sessionless):
    __slots__ = ()

    def respond(
        self,
        targets: Sequence[FetchTarget],
        answers: Sequence[PartitionRead],
        now_ms: TimestampMs,
    ) -> FetchResponse:
        return FetchResponse(_by_topic(targets, answers))


class FailedSessionFetch(_Sessionless):
    __slots__ = ("_error",)

    def __init__(self, error: ErrorCode) -> None:
        super().__init__({})
        self._error = error

    def respond(
        self,
        targets: Sequence[FetchTarget],
        answers: Sequence[PartitionRead],
        now_ms: TimestampMs,
    ) -> FetchResponse:
        return FetchResponse((), error_code=self._error)


class FullFetch(_Sessionless):
    """A full request. Its response creates a session if there is room."""

    __slots__ = ("_cache", "_is_privileged", "_terms", "_uses_topic_ids")

    def __init__(
        self,
        partitions: RequestedPartitions,
        cache: FetchSessionCache,
        terms: FetchTerms | None,
        *,
        is_privileged: bool,
        uses_topic_ids: bool,
    ) -> None:
        super().__init__(partitions)
        self._cache = cache
        self._terms = terms
        self._is_privileged = is_privileged
        self._uses_topic_ids = uses_topic_ids

    def respond(
        self,
        targets: Sequence[FetchTarget],
        answers: Sequence[PartitionRead],
        now_ms: TimestampMs,
    ) -> FetchResponse:
        session = self._cache.open_session(
            len(targets),
            now_ms,
            is_privileged=self._is_privileged,
            uses_topic_ids=self._uses_topic_ids,
        )
        if session is None:
            return FetchResponse(_by_topic(targets, answers))
        session.terms = self._terms
        for target, answer in zip(targets, answers, strict=True):
            # `add` makes all of them unread: changes since their read were not marked, as no
            # session watched.
            target.note_response(answer.response)
            session.add(target)
        return FetchResponse(_by_topic(targets, answers), session_id=session.session_id)


@dataclass(slots=True, eq=False)
class IncrementalFetch:
    """An incremental request.

    `next_epoch` is the epoch that the session's next request must have.
    """

    session: FetchSession
    next_epoch: int

    @property
    def is_empty(self) -> bool:
        return not self.session.partitions

    def targets(self) -> Sequence[FetchTarget]:
        return self.session.targets()

    def changeable(self) -> Iterable[FetchTarget]:
        return self.session.unread | self.session.marked

    @property
    def wait_keys(self) -> Sequence[Hashable]:
        return (self.session,)

    def respond(
        self,
        targets: Sequence[FetchTarget],
        answers: Sequence[PartitionRead],
        now_ms: TimestampMs,
    ) -> FetchResponse:
        """Answers INVALID_FETCH_SESSION_EPOCH if another connection has used the session
        meanwhile.
        """
        session = self.session
        if session.epoch != self.next_epoch:
            error = ErrorCode.invalid_fetch_session_epoch
            return FetchResponse((), error_code=error, session_id=session.session_id)
        return FetchResponse(session.news(targets, answers), session_id=session.session_id)


def _by_topic(
    targets: Sequence[FetchTarget], answers: Sequence[PartitionRead]
) -> list[FetchTopicResponse]:
    """Group adjacent partitions of one topic. The order of partitions is kept."""
    topics: list[FetchTopicResponse] = []
    name = topic_id = None
    partitions: list[FetchPartitionResponse] = []
    for target, answer in zip(targets, answers, strict=True):
        key = target.key
        if not topics or key.name != name or key.topic_id != topic_id:
            name, topic_id, partitions = key.name, key.topic_id, []
            topics.append(FetchTopicResponse(name, topic_id, partitions))
        partitions.append(answer.response)
    return topics


class FetchSessionCache:
    """The sessions of this broker, and the rules for evicting them.

    A new session may evict one that was unused for longer than `eviction_ms`. A larger session may
    evict a smaller one that was created before that time. A follower's (privileged) session may
    evict a consumer's session of any age.
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

    def context(
        self, request: FetchRequest, version: int, now_ms: TimestampMs, terms: FetchTerms | None
    ) -> FetchContext:
        """The context that answers `request`.

        Without `terms` every request of a session reads all partitions.
        """
        uses_topic_ids = version >= FIRST_TOPIC_ID_VERSION
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # Most have no session, and save the call (docs/decisions/0136).
            if request.session_id in self._sessions:
                self._close(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return SessionlessFetch(_requested_partitions(request))
            return FullFetch(
                _requested_partitions(request),
                self,
                terms,
                is_privileged=request.replica_id > CONSUMER_REPLICA_ID,
                uses_topic_ids=uses_topic_ids,
            )
        session = self._sessions.get(request.session_id)
        if session is None:
            return FailedSessionFetch(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            return FailedSessionFetch(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            return FailedSessionFetch(ErrorCode.fetch_session_topic_id_error)
        return self._go_on(session, request, now_ms, terms)

    def _go_on(
        self,
        session: FetchSession,
        request: FetchRequest,
        now_ms: TimestampMs,
        terms: FetchTerms | None,
    ) -> FetchContext:
        if request.topics or request.forgotten_topics:
            session.update(request)
        if not session.partitions:
            self._close(session.session_id)
            return SessionlessFetch({})
        # Touched first: `update` has changed the number of partitions that the cache counts.
        self._touch(session, now_ms)
        if self._partition_count > self._partitions_max:
            # The client then tries to create a new session.
            self._close(session.session_id)
            return FailedSessionFetch(ErrorCode.fetch_session_id_not_found)
        if terms is None or terms != session.terms:
            session.unread.update(session.partitions.values())
        session.terms = terms
        # Raised by the request, not by its answer: while the request waits, a second one with the
        # same epoch is refused.
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetch(session, session.epoch)

    def open_session(
        self, size: int, now_ms: TimestampMs, *, is_privileged: bool, uses_topic_ids: bool
    ) -> FetchSession | None:
        """A new session with room for `size` partitions, which the caller adds. None if `size` is 0
        or there is no room."""
        if not size or not self._make_room(size, now_ms, is_privileged=is_privileged):
            return None
        session = FetchSession(self._new_id(), is_privileged, uses_topic_ids, now_ms)
        self._sessions[session.session_id] = session
        self._touch(session, now_ms, size)
        return session

    def _new_id(self) -> int:
        while True:
            # Random, so that a client with an old id does not use another client's session.
            session_id = self._rng.randint(1, INT32_MAX)
            if session_id not in self._sessions:
                return session_id

    def _touch(self, session: FetchSession, now_ms: TimestampMs, size: int | None = None) -> None:
        # Moved to the end, since the dict is in the order of last use.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        session.last_used_ms = now_ms
        size = len(session.partitions) if size is None else size
        self._partition_count += size - session.counted_size
        session.counted_size = size
        is_old = now_ms - session.created_ms > self._eviction_ms
        # Computed at each use and not at an eviction, as in Kafka's FetchSessionCache.touch: a
        # session that is not used keeps its rank.
        session.is_evictable_by_all = is_old
        session.is_evictable_by_privileged = is_old or not session.is_privileged

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= session.counted_size
            session.close()

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
        # 0 is below every id: a session of the same rank and size stays.
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


def _requested_partitions(request: FetchRequest) -> RequestedPartitions:
    """The requested partitions. If a partition occurs twice, the last entry counts."""
    partitions = {}
    for topic in request.topics:
        for partition in topic.partitions:
            partitions[PartitionKey(topic.name, topic.topic_id, partition.partition)] = partition
    return partitions
