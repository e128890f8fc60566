"""The thread that fetches partitions from one leader, and appends what it gets.

    loop: request of what is ready ──► answer ──► per partition: react, under the lock
              ▲                                        │
              └── no partition ready: wait ◄───────────┘ failed request: all back off

The lock is held while a partition's log is changed, never while the leader or the remote tier is waited
for. What was planned during such a wait is carried out only if the partition's state is still the same.
So once `remove` returns, nothing of an older leader epoch is appended any more.
Source: Kafka AbstractFetcherThread, ReplicaFetcherThread.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from isotherm.broker.replication.fetch_session_client import FetchSessionClient, SessionRequest
from isotherm.broker.replication.fetched_records import append_fetched
from isotherm.broker.replication.follower_fetch import (
    FetchState,
    Reaction,
    ResetAct,
    first_fetch,
    plan_reset,
    react,
    reaction_to_error,
    truncation_offset,
)
from isotherm.broker.replication.leader_endpoint import EARLIEST, LATEST, Leader, LookUpError
from isotherm.broker.replication.replication_quota import ReplicationQuota
from isotherm.clock import Clock
from isotherm.config.replication import ReplicationConfig
from isotherm.errors import CorruptRecordError, IsothermError, RetriableError
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.fetch import FetchPartition, FetchPartitionResponse, FetchRequest
from isotherm.types import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    TopicPartition,
)

logger = logging.getLogger(__name__)

_READ_UNCOMMITTED = 0


class FollowedPartition(Protocol):
    """What a fetcher needs of a partition."""

    topic_id_partition: TopicIdPartition
    log: PartitionLog
    leader_epoch: LeaderEpoch

    def note_replicated(self, size: int) -> None:
        """The log has `size` more bytes, or another high watermark or log start."""


class Moved(NamedTuple):
    """Where the fetch goes on, at the log end, after a planned change. `lag` counts offsets."""

    lag: Offset


LogChange: TypeAlias = Callable[[], Moved]
"""A planned change of a log. Carried out under the fetcher's lock."""


class TierFollower(Protocol):
    """Begins a log behind the part that the remote tier has (`tier_follower`)."""

    def begins_behind_uploads(self, log: PartitionLog, leader_end_offset: Offset) -> bool:
        """Whether a log leaves what is uploaded to the tier from the start (KIP-1023)."""

    def plan(
        self, place: TopicIdPartition, log: PartitionLog, leader_epoch: LeaderEpoch, leader: Leader
    ) -> LogChange:
        """Look up where the log begins, and its history. Raises IsothermErrors."""


@dataclass(slots=True)
class _Followed:
    """`state` is None before the first fetch in this leader epoch, `asked` if the last request left
    the partition out."""

    partition: FollowedPartition
    leader_epoch: LeaderEpoch
    state: FetchState | None = None
    asked: FetchPartition | None = None

    @property
    def place(self) -> TopicIdPartition:
        return self.partition.topic_id_partition

    @property
    def latest_epoch(self) -> LeaderEpoch:
        latest = self.partition.log.leader_epochs.latest
        return NO_LEADER_EPOCH if latest is None else latest.epoch


class _Key(NamedTuple):
    topic_id: uuid.UUID | None
    partition: int


def _raise(error: Exception) -> Moved:
    raise error


class ReplicaFetcher:
    """Thread-safe. `start` once, `stop` once."""

    def __init__(
        self,
        name: str,
        leader: Leader,
        log_manager: LogManager,
        config: ReplicationConfig,
        *,
        broker_id: BrokerId,
        clock: Clock,
        quota: ReplicationQuota | None = None,
        tier: TierFollower | None = None,
    ) -> None:
        """`leader` is closed with the fetcher."""
        self.name = name
        self._leader = leader
        self._log_manager = log_manager
        self._config = config
        self._broker_id = broker_id
        self._clock = clock
        self._quota = quota
        self._tier = tier
        self._session = FetchSessionClient()
        self._lock = threading.Lock()
        # In the order of their turns: a partition that got records goes to the end. A response is
        # bounded in bytes, so without turns the first partitions would get them all.
        self._followed: dict[_Key, _Followed] = {}
        self._failed: set[TopicPartition] = set()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # ---- any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to end: a request that waits is given up, an append that runs is finished."""
        self._stopping.set()
        self._wake.set()
        self._leader.close()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread; returns whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def add(self, partitions: Iterable[FollowedPartition]) -> None:
        """Fetch these in their present leader epoch. One that is fetched in it already goes on."""
        with self._lock:
            for partition in partitions:
                place, epoch = partition.topic_id_partition, partition.leader_epoch
                self._failed.discard(place.topic_partition)
                key = _Key(place.topic_id, place.partition)
                known = self._followed.get(key)
                # The same object in the same epoch keeps its state: a new one would drop the answer
                # that is under way.
                if known is None or known.partition is not partition or known.leader_epoch != epoch:
                    self._followed[key] = _Followed(partition, epoch)
        self._wake.set()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these no more. What is being appended is finished first."""
        removed = set(partitions)
        with self._lock:
            self._failed -= removed
            self._followed = {
                key: each
                for key, each in self._followed.items()
                if each.place.topic_partition not in removed
            }

    @property
    def followed(self) -> list[FollowedPartition]:
        with self._lock:
            return [each.partition for each in self._followed.values()]

    @property
    def failed_partitions(self) -> frozenset[TopicPartition]:
        """Those that wait for a new leader epoch."""
        with self._lock:
            return frozenset(self._failed)

    def lags(self) -> dict[TopicPartition, Offset]:
        """How many offsets each is behind its leader; without those where it is not known."""
        with self._lock:
            return {
                each.place.topic_partition: each.state.lag
                for each in self._followed.values()
                if each.state is not None and each.state.lag is not None
            }

    # ---- the thread: requests

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            # The boundary of the thread: partitions depend on it.
            try:
                has_asked = self._fetch_once()
            except Exception:
                logger.exception("replica fetcher met an unexpected error fetcher=%s", self.name)
                self._on_failed_request()
                has_asked = False
            if not has_asked and not self._stopping.is_set():
                self._clock.wait(self._wake, self._config.replica_fetch_backoff_ms / 1000)

    def _fetch_once(self) -> bool:
        """One request and its answer. False if there is nothing to ask now."""
        with self._lock:
            request = self._session.request(self._wanted())
        if request.is_empty:
            return False
        try:
            response = self._leader.fetch(self._fetch_request(request))
        except RetriableError as error:
            if not self._stopping.is_set():
                logger.warning("leader cannot be fetched from fetcher=%s: %s", self.name, error)
            self._on_failed_request()
            return True
        fault = self._session.on_response(response)
        if fault:
            logger.info("fetch session begins anew fetcher=%s reason='%s'", self.name, fault)
            # A full request would fail in the same way at once. After an incremental one the next
            # request is full, and may succeed.
            if request.is_full:
                self._delay_all()
            return True
        # The lock is taken for each partition, not for the response: `remove` waits for one append
        # at most.
        for topic in response.topics:
            for answer in topic.partitions:
                if not self._stopping.is_set():
                    self._process(_Key(topic.topic_id, answer.partition), answer)
        return True

    def _fetch_request(self, request: SessionRequest) -> FetchRequest:
        return FetchRequest(
            self._broker_id,
            self._config.replica_fetch_wait_max_ms,
            self._config.replica_fetch_min_bytes,
            self._config.replica_fetch_response_max_bytes,
            _READ_UNCOMMITTED,
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten_topics,
            rack_id="",
        )

    def _wanted(self) -> dict[TopicIdPartition, FetchPartition]:
        """What is ready. Remembers in each partition what is asked of it."""
        now_ms = self._now_ms()
        wanted = {}
        for followed in list(self._followed.values()):
            followed.asked = None
            if followed.state is None:
                self._attempt(followed, lambda each=followed: self._begin(each))  # type: ignore[misc]
            state, place = followed.state, followed.place
            if state is None or not state.is_ready(now_ms) or self._is_held_back(followed, state):
                continue
            wanted[place] = followed.asked = state.request(
                place.partition,
                log_start_offset=followed.partition.log.log_start_offset,
                max_bytes=self._config.replica_fetch_max_bytes,
            )
        return wanted

    def _is_held_back(self, followed: _Followed, state: FetchState) -> bool:
        # Never a replica that is in sync: it would have to leave the ISR.
        return (
            self._quota is not None
            and not state.is_in_sync
            and self._quota.holds_back(followed.place.topic_partition)
        )

    def _on_failed_request(self) -> None:
        self._session.on_failure()
        self._delay_all()

    def _delay_all(self) -> None:
        with self._lock:
            for followed in self._followed.values():
                self._back_off(followed)

    # ---- the thread: answers

    def _process(self, key: _Key, answer: FetchPartitionResponse) -> None:
        with self._lock:
            followed = self._followed.get(key)
            # Removed, or given another leader epoch, while the request was under way.
            if followed is None or followed.state is None:
                return
            state = followed.state
            reaction = react(state, followed.asked, answer, self._now_ms())
            match reaction:
                case Reaction.APPEND:
                    self._attempt(followed, lambda: self._append(key, followed, state, answer))
                case Reaction.TRUNCATE:
                    self._attempt(followed, lambda: self._truncate(followed, state, answer))
                case Reaction.BACK_OFF | Reaction.FAIL:
                    self._give_up(followed, reaction, f"error_code={answer.error_code}")
        # These ask the leader or the remote tier first, so they run without the lock.
        if reaction is Reaction.RESET:
            self._change(key, followed, state, lambda: self._plan_reset(followed, state))
        elif reaction is Reaction.BUILD_FROM_TIER:
            self._change(key, followed, state, lambda: self._plan_from_tier(followed, state))

    def _begin(self, followed: _Followed) -> None:
        log = followed.partition.log
        latest = log.leader_epochs.latest
        first = first_fetch(
            followed.leader_epoch,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            latest_epoch=None if latest is None else latest.epoch,
        )
        # By the log manager, not the log: checkpoints on disk must not be above the new end.
        if first.truncate_to is not None:
            self._log_manager.truncate_log(log, first.truncate_to)
        followed.state = first.state._replace(fetch_offset=log.log_end_offset)

    def _append(
        self, key: _Key, followed: _Followed, state: FetchState, answer: FetchPartitionResponse
    ) -> None:
        partition, log = followed.partition, followed.partition.log
        assert state.fetch_offset == log.log_end_offset, (state, log)
        before = (log.high_watermark, log.log_start_offset)
        info = append_fetched(self._log_manager, log, answer, state.leader_epoch)
        followed.state = state.appended(
            log.log_end_offset, info.last_leader_epoch, answer.high_watermark
        )
        if info.size:
            self._followed[key] = self._followed.pop(key)
            if self._quota is not None:
                self._quota.record(followed.place.topic_partition, info.size)
        # An empty response may raise the high watermark or the log start: readers wait for both.
        if info.size or before != (log.high_watermark, log.log_start_offset):
            partition.note_replicated(info.size)

    def _truncate(
        self, followed: _Followed, state: FetchState, answer: FetchPartitionResponse
    ) -> None:
        assert answer.diverging_epoch is not None
        log = followed.partition.log
        offset = truncation_offset(
            answer.diverging_epoch,
            lambda epoch: log.leader_epochs.end_offset_for(epoch, log.log_end_offset),
            log_end_offset=log.log_end_offset,
            fetch_offset=state.fetch_offset,
        )
        logger.info(
            "log is truncated to its leader's history partition=%s offset=%d log_end_offset=%d"
            " high_watermark=%d leader_epoch=%d diverging_epoch=%s",
            followed.place,
            offset,
            log.log_end_offset,
            log.high_watermark,
            state.leader_epoch,
            answer.diverging_epoch,
        )
        self._log_manager.truncate_log(log, offset)
        followed.state = state.moved(log.log_end_offset, followed.latest_epoch)

    # ---- the thread: changes that need the leader's word

    def _change(
        self, key: _Key, followed: _Followed, state: FetchState, plan: Callable[[], LogChange]
    ) -> None:
        """Plan without the lock, then change the log if the partition's state is still the same."""
        try:
            change = plan()
        except Exception as error:  # noqa: BLE001 (raised again, below)
            change = partial(_raise, error)
        with self._lock:
            if self._followed.get(key) is followed and followed.state is state:
                self._attempt(followed, lambda: self._carry_out(followed, state, change))

    def _carry_out(self, followed: _Followed, state: FetchState, change: LogChange) -> None:
        moved = change()
        log = followed.partition.log
        followed.state = state.moved(log.log_end_offset, followed.latest_epoch, moved.lag)
        followed.partition.note_replicated(0)

    def _plan_reset(self, followed: _Followed, state: FetchState) -> LogChange:
        log, place = followed.partition.log, followed.place
        leader_end = self._leader.find_offset(place, state.leader_epoch, LATEST).offset
        if self._tier is not None and self._tier.begins_behind_uploads(log, leader_end):
            return self._plan_from_tier(followed, state)
        # The leader's start is looked up only if its end does not decide, as in Kafka.
        reset = plan_reset(leader_end, None, log.log_end_offset)
        if reset is None:
            leader_start = self._leader.find_offset(place, state.leader_epoch, EARLIEST).offset
            reset = plan_reset(leader_end, leader_start, log.log_end_offset)
        assert reset is not None
        act, offset, lag = reset

        def change() -> Moved:
            logger.warning(
                "offset is out of range of the leader's log partition=%s fetch_offset=%d"
                " next_offset=%d reason='%s'",
                place,
                state.fetch_offset,
                offset,
                act.value,
            )
            if act is ResetAct.TRUNCATE:
                self._log_manager.truncate_log(log, offset)
            elif act is ResetAct.BEGIN_ANEW:
                self._log_manager.truncate_log_fully_and_start_at(log, offset)
            return Moved(lag)

        return change

    def _plan_from_tier(self, followed: _Followed, state: FetchState) -> LogChange:
        if self._tier is None:
            raise RetriableError(
                f"leader has a remote tier and this broker has none partition={followed.place}"
            )
        log = followed.partition.log
        return self._tier.plan(followed.place, log, state.leader_epoch, self._leader)

    # ---- failures, with the lock

    def _attempt(self, followed: _Followed, act: Callable[[], None]) -> None:
        """A failure ends the fetching of this partition, or delays it, and of no other."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 (the boundary of a partition's work)
            self._on_error(followed, error)

    def _on_error(self, followed: _Followed, error: Exception) -> None:
        # Any other error, of a directory or of our own, would come again with each request.
        reaction = Reaction.FAIL
        if isinstance(error, LookUpError):
            reaction = reaction_to_error(error.error_code)
        elif followed.state is not None and isinstance(error, RetriableError | CorruptRecordError):
            reaction = Reaction.BACK_OFF
        if not isinstance(error, IsothermError):
            logger.error(
                "partition cannot be followed partition=%s", followed.place, exc_info=error
            )
        self._give_up(followed, reaction, str(error) or type(error).__name__)

    def _give_up(self, followed: _Followed, reaction: Reaction, reason: str) -> None:
        if reaction is not Reaction.FAIL:
            logger.info(
                "partition is fetched again later partition=%s reason='%s'", followed.place, reason
            )
            self._back_off(followed)
            return
        logger.error(
            "partition is not fetched before a new leader epoch partition=%s leader_epoch=%d"
            " reason='%s'",
            followed.place,
            followed.leader_epoch,
            reason,
        )
        place = followed.place
        self._followed.pop(_Key(place.topic_id, place.partition), None)
        self._failed.add(place.topic_partition)

    def _back_off(self, followed: _Followed) -> None:
        if followed.state is not None:
            followed.state = followed.state.delayed(
                self._now_ms(), self._config.replica_fetch_backoff_ms
            )

    def _now_ms(self) -> int:
        # Not the time of day, which may be set back.
        return int(self._clock.monotonic_s() * 1000)
