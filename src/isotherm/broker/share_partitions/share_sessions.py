"""Share sessions: the partitions that a member fetches, so that its requests name changes alone.

    epoch 0 ──> a new session ──> 1, 2, ... one epoch for each ShareFetch and ShareAcknowledge
                                   -1 ends it and releases what the member has acquired

A session also ends with the connection that began it. As in Kafka no session is evicted for
another member: that would release records that a member works on.

Source: Kafka ShareSessionCache, ShareSession, ShareSessionContext, PartitionRotateStrategy.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1


class MemberKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class _Answer(Protocol):
    """What a session needs to know of a partition's answer."""

    @property
    def error_code(self) -> int: ...
    @property
    def has_records(self) -> bool: ...


A = TypeVar("A", bound=_Answer)


@dataclass(slots=True)
class _CachedPartition:
    """`name` is the topic's name when the partition was added; None for an unknown id.
    `is_due`: the next response has the partition even if there is nothing to tell."""

    name: str | None
    is_due: bool


@dataclass(slots=True, eq=False)
class ShareSession:
    """`connection` is the one that began it."""

    key: MemberKey
    epoch: int
    connection: Hashable
    partitions: dict[SharePartitionKey, _CachedPartition] = field(default_factory=dict)
    counted_size: int = 0


class ShareFetchContext(NamedTuple):
    """What a ShareFetch fetches. `partitions` have the topics' names.

    `session` is None for a request that begins or ends a session: its answer has all partitions.
    """

    epoch: int
    partitions: Mapping[SharePartitionKey, str | None]
    session: ShareSession | None

    def rotated(self) -> list[SharePartitionKey]:
        """The partitions in another order for each epoch, so that each is the first in turn."""
        keys = list(self.partitions)
        if not keys or self.epoch < 1:
            return keys
        start = self.epoch % len(keys)
        return keys[start:] + keys[:start]

    def answered(self, answers: Mapping[SharePartitionKey, A]) -> Mapping[SharePartitionKey, A]:
        """The answers that the member is sent: those with records or an error.

        Raises InvalidShareSessionEpochError if another request of the session came meanwhile.
        """
        session = self.session
        if session is None:
            return answers
        if session.epoch != next_epoch(self.epoch):
            raise InvalidShareSessionEpochError(
                "another request of the share session came meanwhile"
                f" epoch={self.epoch} session_epoch={session.epoch}"
            )
        sent: dict[SharePartitionKey, A] = {}
        for key, answer in answers.items():
            cached = session.partitions.get(key)
            if cached is None:
                continue
            has_error = bool(answer.error_code)
            if answer.has_records or has_error or cached.is_due:
                sent[key] = answer
            # After an error the partition is sent once more, so that the member sees its end.
            cached.is_due = has_error
            if answer.has_records:
                # Behind those that wait for their turn.
                session.partitions[key] = session.partitions.pop(key)
        return sent


class ShareSessionCache:
    """Holds at most `sessions_max` sessions, with `partitions_max` partitions together. Event loop
    thread only."""

    def __init__(self, *, sessions_max: int, partitions_max: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._by_connection: dict[Hashable, set[MemberKey]] = {}
        self._member_counts: dict[str, int] = {}
        self.partition_count = 0
        self.eviction_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def has_members(self, group_id: str) -> bool:
        return group_id in self._member_counts

    def get(self, key: MemberKey) -> ShareSession:
        """Raises ShareSessionNotFoundError."""
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFoundError(
                f"there is no share session group_id={key.group_id} member_id={key.member_id}"
            )
        return session

    def fetch(
        self,
        key: MemberKey,
        epoch: int,
        added: Mapping[SharePartitionKey, str | None],
        forgotten: Iterable[SharePartitionKey],
        connection: Hashable,
        *,
        has_acknowledgements: bool,
    ) -> ShareFetchContext:
        """The context of a ShareFetch, which begins a session or changes one.

        Raises InvalidRequestError for acknowledgements that begin a session,
        ShareSessionNotFoundError, InvalidShareSessionEpochError and ShareSessionLimitReachedError.
        """
        if epoch == FINAL_EPOCH:
            self.get(key)
            return ShareFetchContext(epoch, {}, None)
        if epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise InvalidRequestError(
                    "the request that begins a share session has acknowledgements"
                    f" group_id={key.group_id} member_id={key.member_id}"
                )
            self.remove(key)
            self._open(key, added, connection)
            return ShareFetchContext(epoch, added, None)
        session = self._in_step(key, epoch)
        for partition, name in added.items():
            session.partitions.setdefault(partition, _CachedPartition(name, is_due=True))
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self._count(session)
        if self.partition_count > self._partitions_max:
            self.remove(key)
            raise _limit_reached(key)
        session.epoch = next_epoch(epoch)
        partitions = {partition: cached.name for partition, cached in session.partitions.items()}
        return ShareFetchContext(epoch, partitions, session)

    def acknowledge(self, key: MemberKey, epoch: int) -> None:
        """Note a ShareAcknowledge. Raises ShareSessionNotFoundError and
        InvalidShareSessionEpochError."""
        if epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpochError("an acknowledgement cannot begin a share session")
        if epoch == FINAL_EPOCH:
            self.get(key)
            return
        session = self._in_step(key, epoch)
        session.epoch = next_epoch(epoch)

    def _in_step(self, key: MemberKey, epoch: int) -> ShareSession:
        session = self.get(key)
        if session.epoch != epoch:
            raise InvalidShareSessionEpochError(
                f"the request is out of step group_id={key.group_id} member_id={key.member_id}"
                f" epoch={epoch} session_epoch={session.epoch}"
            )
        return session

    def _open(
        self,
        key: MemberKey,
        partitions: Mapping[SharePartitionKey, str | None],
        connection: Hashable,
    ) -> None:
        is_full = self.partition_count + len(partitions) > self._partitions_max
        if is_full or len(self._sessions) >= self._sessions_max:
            raise _limit_reached(key)
        session = ShareSession(key, next_epoch(INITIAL_EPOCH), connection)
        session.partitions = {
            partition: _CachedPartition(name, is_due=False)
            for partition, name in partitions.items()
        }
        self._sessions[key] = session
        self._by_connection.setdefault(connection, set()).add(key)
        self._member_counts[key.group_id] = self._member_counts.get(key.group_id, 0) + 1
        self._count(session)

    def _count(self, session: ShareSession) -> None:
        self.partition_count += len(session.partitions) - session.counted_size
        session.counted_size = len(session.partitions)

    def remove(self, key: MemberKey) -> Collection[SharePartitionKey]:
        """End a session. Returns its partitions; none if there is no session."""
        session = self._sessions.pop(key, None)
        if session is None:
            return ()
        self.partition_count -= session.counted_size
        keys = self._by_connection[session.connection]
        keys.discard(key)
        if not keys:
            del self._by_connection[session.connection]
        self._member_counts[key.group_id] -= 1
        if not self._member_counts[key.group_id]:
            del self._member_counts[key.group_id]
        return tuple(session.partitions)

    def of_connection(self, connection: Hashable) -> Sequence[MemberKey]:
        """Whose sessions a connection has begun."""
        return tuple(self._by_connection.get(connection, ()))


def next_epoch(epoch: int) -> int:
    """Epochs go on with 1 after the last one."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1


def _limit_reached(key: MemberKey) -> ShareSessionLimitReachedError:
    return ShareSessionLimitReachedError(
        "this broker has its maximum of share sessions, or of partitions in them"
        f" group_id={key.group_id} member_id={key.member_id}"
    )
