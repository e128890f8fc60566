"""A replica fetcher: a thread that fetches partitions from one leader and appends the records.

    loop: request the ready partitions ──► answer ──► per partition: react, under the lock
              ▲                                        │
              └── no partition ready: wait ◄───────────┘ failed request: all back off

A new partition ends the wait of a request under way, at most once per replica.fetch.wait.max.ms.

The fetcher holds its lock while it changes a partition's log, and releases it while it waits for
the leader or the remote tier. A change that was planned during such a wait is carried out only if
the partition's state is still the same. So once `remove` returns, nothing of an older leader epoch
is appended any more.
Source: Kafka AbstractFetcherThread, ReplicaFetcherThread.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.replication.fetch_session_client import (
    FetchSessionClient,
    SessionRequest,
)
from isotherm.broker.partitions.replication.fetched_records import append_fetched
from isotherm.broker.partitions.replication.follower_fetch import (
    FetchState,
    Reaction,
    ResetAct,
    first_fetch,
    plan_reset,
    react,
    reaction_to_error,
    truncation_offset,
)
from isotherm.broker.partitions.replication.leader_endpoint import (
    EARLIEST,
    LATEST,
    LeaderEndpoint,
    LookUpError,
)
from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
from isotherm.broker.threads.step_thread import StepThread
from isotherm.clock import Clock
from isotherm.config.replication import ReplicationConfig
from isotherm.errors import CorruptRecordError, RetriableError
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.code_names import code_name
from isotherm.protocol.fetch import FetchPartition, FetchPartitionResponse, FetchRequest
from isotherm.remote.outages import Outage, Outages, log_failure
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

# With more partitions the fetch under way goes on waiting when some are added: the next request
# would be a full one, some 10 microseconds for each partition on either side.
FOLLOWED_MAX_TO_END_WAIT = 1000

# A leader may hear of its role a moment after its followers. The first fetch of a partition that it
# refuses so is repeated after this time, then after twice of it, up to replica.fetch.backoff.ms.
FIRST_BACKOFF_MS = 50
_LEADS_NOT_YET = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_leader_epoch,
    }
)


class FollowedPartition(Protocol):
    """The part of a partition that a fetcher uses."""

    topic_id_partition: TopicIdPartition
    log: PartitionLog
    leader_epoch: LeaderEpoch

    def note_replicated(self, size: int) -> None:
        """The log has grown by `size` bytes, or its high watermark or log start has changed."""


class Moved(NamedTuple):
    """The result of a planned change. The fetch continues at the log end, `lag` offsets behind."""

    lag: Offset


LogChange: TypeAlias = Callable[[], Moved]
"""A planned change of a log. The fetcher calls it under its lock."""


class TierFollower(Protocol):
    """Restarts a log behind the part that the remote tier has (`tier_follower`)."""

    def begins_behind_uploads(self, log: PartitionLog, leader_end_offset: Offset) -> bool:
        """Whether a new log starts behind all uploaded segments instead of copying them
        (KIP-1023).
        """

    def plan(
        self,
        place: TopicIdPartition,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        leader: LeaderEndpoint,
    ) -> LogChange:
        """Look up the offset and the history with which the log restarts. Raises IsothermError."""


class FetcherContext(NamedTuple):
    """What all fetchers of a broker share."""

    log_manager: LogManager
    config: ReplicationConfig
    broker_id: BrokerId
    clock: Clock
    quota: ReplicationQuota | None = None
    tier: TierFollower | None = None


@dataclass(slots=True)
class _Followed:
    """A followed partition. `state` is None before the first fetch in this leader epoch. `request`
    is None if the last fetch left the partition out; it was made of `requested_state`.
    `refused_count` is how often the leader has said that it does not lead the partition yet."""

    partition: FollowedPartition
    leader_epoch: LeaderEpoch
    state: FetchState | None = None
    request: FetchPartition | None = None
    requested_state: FetchState | None = None
    refused_count: int = 0

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


class RefusedFetchError(RetriableError):
    """The leader answered for a partition with an error that an attempt mends, or another leader
    epoch.
    """


def _raise(error: Exception) -> Moved:
    raise error


class ReplicaFetcher:
    """Thread-safe. `start` once, `stop` once."""

    def __init__(self, name: str, leader: LeaderEndpoint, context: FetcherContext) -> None:
        """The fetcher owns `leader` and closes it."""
        self.name = name
        self._leader = leader
        self._log_manager = context.log_manager
        self._config = context.config
        self._broker_id = context.broker_id
        self._clock = context.clock
        self._quota = context.quota
        self._tier = context.tier
        self._session = FetchSessionClient()
        self._outage = Outage(
            logger,
            context.clock,
            failing=f"leader cannot be fetched from fetcher={name}",
            working=f"leader is fetched from again fetcher={name}",
        )
        self._partition_outages = Outages(
            logger,
            context.clock,
            failing="partition is fetched again later partition={}",
            working="partition is fetched again partition={}",
        )
        self._lock = threading.Lock()
        # In the order of requests. A partition that got records moves to the end (`_append`),
        # because a response is bounded in bytes and the first partitions would otherwise get all of
        # them.
        self._followed: dict[_Key, _Followed] = {}
        self._failed: set[TopicPartition] = set()
        # Whether a fetch is under way, whether new partitions have ended its wait, and before which
        # time they end no other.
        self._is_fetching = False
        self._is_wait_ended = False
        self._waits_until_s = -math.inf
        # When the first partition is ready that the last request left out.
        self._ready_ms = math.inf
        self._thread = StepThread(name, self._step, context.clock)

    # ---- any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to stop. A request that waits is aborted; an append in progress finishes."""
        self._thread.begin_stop()
        self._leader.close()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread; returns whether it has ended."""
        return self._thread.join(timeout_s)

    def add(self, partitions: Iterable[FollowedPartition]) -> None:
        """Fetch these partitions in their current leader epoch. A partition that is already fetched
        in it continues."""
        with self._lock:
            has_new = False
            for partition in partitions:
                place, epoch = partition.topic_id_partition, partition.leader_epoch
                self._failed.discard(place.topic_partition)
                key = _Key(place.topic_id, place.partition)
                earlier = self._followed.get(key)
                # The same object in the same epoch keeps its state: a new state would drop the
                # answer in flight.
                if (
                    earlier is None
                    or earlier.partition is not partition
                    or earlier.leader_epoch != epoch
                ):
                    self._followed[key] = _Followed(partition, epoch)
                    has_new = True
            if has_new:
                self._end_wait()
        self._thread.wake()

    def _end_wait(self) -> None:
        """End a fetch that waits for records: the next one has the new partitions. The caller holds
        the lock.

        It waits for up to replica.fetch.wait.max.ms otherwise, and with it each producer with
        acks=all to a new topic. In Kafka it does (docs/decisions/0307).
        """
        now_s = self._clock.monotonic_s()
        if (
            self._is_fetching
            and len(self._followed) <= FOLLOWED_MAX_TO_END_WAIT
            and now_s >= self._waits_until_s
        ):
            self._waits_until_s = now_s + self._config.replica_fetch_wait_max_ms / 1000
            self._is_wait_ended = True
            self._leader.interrupt()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. Waits for an append in progress."""
        removed = set(partitions)
        with self._lock:
            self._failed -= removed
            for followed in self._followed.values():
                if followed.place.topic_partition in removed:
                    self._partition_outages.forget(followed.place)
            self._followed = {
                key: partition
                for key, partition in self._followed.items()
                if partition.place.topic_partition not in removed
            }

    @property
    def followed(self) -> list[FollowedPartition]:
        with self._lock:
            return [followed.partition for followed in self._followed.values()]

    @property
    def failed_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are not fetched before a new leader epoch."""
        with self._lock:
            return frozenset(self._failed)

    def lags(self) -> dict[TopicPartition, Offset]:
        """The lag of each partition in offsets. Partitions with an unknown lag are left out."""
        with self._lock:
            return {
                followed.place.topic_partition: followed.state.lag
                for followed in self._followed.values()
                if followed.state is not None and followed.state.lag is not None
            }

    # ---- the thread: requests

    def _step(self) -> float:
        # The boundary of the thread: if it ended, all of its partitions would fall out of sync.
        try:
            has_asked = self._fetch_once()
        except Exception:
            logger.exception("replica fetcher met an unexpected error fetcher=%s", self.name)
            self._on_failed_request()
            has_asked = False
        if has_asked:
            return 0
        backoff_ms = self._config.replica_fetch_backoff_ms
        return min(backoff_ms, max(0, self._ready_ms - self._now_ms())) / 1000

    def _fetch_once(self) -> bool:
        """Send one request and process its answer. Returns False if no partition is ready."""
        with self._lock:
            # The session itself needs no lock: only this thread uses it.
            request = self._session.request(self._requests())
            self._is_fetching = not request.is_empty
        if request.is_empty:
            return False
        try:
            response = self._leader.fetch(self._fetch_request(request))
        except RetriableError as error:
            if self._fetched():
                # No failure of the leader: nobody backs off, and the next request is a full one.
                self._session.on_failure()
                return True
            if not self._thread.is_stopping:
                self._outage.failed(error)
            self._on_failed_request()
            return True
        self._fetched()
        self._outage.worked()
        fault = self._session.on_response(response)
        if fault:
            logger.info("fetch session begins anew fetcher=%s reason='%s'", self.name, fault)
            # Another full request would fail in the same way, so it waits. After an incremental
            # request the next one is full and may succeed.
            if request.is_full:
                self._delay_all()
            return True
        # The lock is taken per partition, not per response, so that `remove` waits for at most one
        # append.
        for topic in response.topics:
            for answer in topic.partitions:
                if not self._thread.is_stopping:
                    self._process(_Key(topic.topic_id, answer.partition), answer)
        return True

    def _fetched(self) -> bool:
        """The fetch is over. Returns whether new partitions have ended its wait."""
        with self._lock:
            is_wait_ended, self._is_wait_ended = self._is_wait_ended, False
            self._is_fetching = False
            return is_wait_ended

    def _fetch_request(self, request: SessionRequest) -> FetchRequest:
        # Nobody waits for longer than until another partition is ready.
        wait_ms = min(self._config.replica_fetch_wait_max_ms, self._ready_ms - self._now_ms())
        return FetchRequest(
            self._broker_id,
            max(0, int(wait_ms)),
            self._config.replica_fetch_min_bytes,
            self._config.replica_fetch_response_max_bytes,
            _READ_UNCOMMITTED,
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten_topics,
            rack_id="",
        )

    def _requests(self) -> dict[TopicIdPartition, FetchPartition]:
        """The partitions that are ready, with their requests.

        Each `_Followed` keeps its request in `request`.
        """
        now_ms = self._now_ms()
        self._ready_ms = math.inf
        requests = {}
        # A copy: `_attempt` removes partitions that fail.
        for followed in list(self._followed.values()):
            state, request = followed.state, followed.request
            # An idle partition's request is used again: a fetcher may have ten thousand. A state
            # in sync was ready at the request before, and nothing holds it back.
            if (
                request is not None
                and state is followed.requested_state
                and request.log_start_offset == followed.partition.log.log_start_offset
                and (self._quota is None or (state is not None and state.is_in_sync))
            ):
                requests[followed.place] = request
                continue
            followed.request = None
            if followed.state is None:
                self._attempt(followed, lambda beginning=followed: self._begin(beginning))  # type: ignore[misc]
            state, place = followed.state, followed.place
            if state is not None and not state.is_ready(now_ms):
                self._ready_ms = min(self._ready_ms, state.delayed_until_ms)
                continue
            if state is None or self._is_held_back(followed, state):
                continue
            followed.requested_state = state
            requests[place] = followed.request = state.request(
                place.partition,
                log_start_offset=followed.partition.log.log_start_offset,
                max_bytes=self._config.replica_fetch_max_bytes,
            )
        return requests

    def _is_held_back(self, followed: _Followed, state: FetchState) -> bool:
        # A replica that is in sync is never held back, since it would fall out of the ISR.
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
            # The partition was removed or got another leader epoch while the request was in flight.
            if followed is None or followed.state is None:
                return
            state = followed.state
            reaction = react(state, followed.request, answer, self._now_ms())
            match reaction:
                case Reaction.APPEND:
                    self._attempt(followed, lambda: self._append(key, followed, state, answer))
                case Reaction.TRUNCATE:
                    self._attempt(followed, lambda: self._truncate(followed, state, answer))
                case Reaction.BACK_OFF | Reaction.FAIL:
                    if state.lag is None and answer.error_code in _LEADS_NOT_YET:
                        self._delay_briefly(followed, state)
                    refusal = RefusedFetchError(f"error={code_name(answer.error_code)}")
                    self._give_up(followed, reaction, refusal)
        # These two wait for the leader or the remote tier, so they run without the lock.
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
        # The log manager truncates, because it first lowers the checkpoints on disk that lie above
        # the new end (docs/decisions/0100).
        if first.truncate_to is not None:
            self._log_manager.truncate_log(log, first.truncate_to)
        # The log ends below `truncate_to` if that was inside a batch, which is dropped as a whole.
        followed.state = first.state._replace(fetch_offset=log.log_end_offset)

    def _append(
        self, key: _Key, followed: _Followed, state: FetchState, answer: FetchPartitionResponse
    ) -> None:
        partition, log = followed.partition, followed.partition.log
        # An append may have ended with an error behind its last record: a log that moves to another
        # directory is closed between two calls. The next fetch names the end, and the epoch there
        # to the leader.
        if state.fetch_offset != log.log_end_offset:
            followed.state = state.moved(log.log_end_offset, followed.latest_epoch)
            partition.note_replicated(0)
            return
        before = (log.high_watermark, log.log_start_offset)
        self._partition_outages.worked(followed.place)
        info = append_fetched(self._log_manager, log, answer, state.leader_epoch)
        followed.state = state.appended(
            log.log_end_offset, info.last_leader_epoch, answer.high_watermark
        )
        if info.size:
            self._followed[key] = self._followed.pop(key)
            if self._quota is not None:
                self._quota.record(followed.place.topic_partition, info.size)
        # An empty response may raise the high watermark or the log start, and readers wait for
        # both.
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
        # Both are read after the truncation: the next fetch must ask about the epoch that is last
        # now.
        followed.state = state.moved(log.log_end_offset, followed.latest_epoch)

    # ---- the thread: changes that need look-ups at the leader

    def _change(
        self, key: _Key, followed: _Followed, state: FetchState, plan: Callable[[], LogChange]
    ) -> None:
        """Plan a change without the lock, then carry it out if the partition's state is still the
        same.

        An error of the plan is handled under the lock too, and only in the same state.
        """
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
        # As in Kafka, the leader's log start is looked up only if its end does not decide.
        reset = plan_reset(leader_end, None, log.log_end_offset)
        if reset is None:
            leader_start = self._leader.find_offset(place, state.leader_epoch, EARLIEST).offset
            reset = plan_reset(leader_end, leader_start, log.log_end_offset)
        assert reset is not None
        act, offset, lag = reset

        def change() -> Moved:
            # A leader whose log ends before this one was elected without being in sync. A log that
            # is behind the leader's start was away for longer than its retention.
            logger.log(
                logging.WARNING if act is ResetAct.TRUNCATE else logging.INFO,
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
        """Run `act`. An error ends or delays the fetching of this partition alone."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 (the boundary of a partition's work)
            self._on_error(followed, error)

    def _on_error(self, followed: _Followed, error: Exception) -> None:
        # Any other error, such as a failed directory or a bug, would recur with each request.
        reaction = Reaction.FAIL
        if isinstance(error, LookUpError):
            reaction = reaction_to_error(error.error_code)
        elif followed.state is not None and isinstance(error, RetriableError | CorruptRecordError):
            # Corrupt records may be a passing state of the leader's log or of the connection, so
            # they are fetched again, as in Kafka. Without a state there is nothing that a back-off
            # could delay, and the next request would fail at once.
            reaction = Reaction.BACK_OFF
        self._give_up(followed, reaction, error)

    def _give_up(self, followed: _Followed, reaction: Reaction, error: Exception) -> None:
        place = followed.place
        if reaction is not Reaction.FAIL:
            self._partition_outages.failed(place, error)
            self._back_off(followed)
            return
        # INFO for FENCED_LEADER_EPOCH: the leader has the new epoch a moment before this broker.
        log_failure(
            logger,
            error,
            f"partition is not fetched before a new leader epoch partition={place}"
            f" leader_epoch={followed.leader_epoch}",
        )
        # Failed partitions leave the requests; the fetcher continues for the others (KIP-461).
        self._followed.pop(_Key(place.topic_id, place.partition), None)
        self._failed.add(place.topic_partition)

    def _delay_briefly(self, followed: _Followed, state: FetchState) -> None:
        backoff_ms = self._config.replica_fetch_backoff_ms
        brief_ms = min(backoff_ms, FIRST_BACKOFF_MS << min(followed.refused_count, 10))
        followed.refused_count += 1
        # The back-off of `_give_up` does not prolong one that runs already.
        followed.state = state.delayed(self._now_ms(), brief_ms)

    def _back_off(self, followed: _Followed) -> None:
        if followed.state is not None:
            followed.state = followed.state.delayed(
                self._now_ms(), self._config.replica_fetch_backoff_ms
            )

    def _now_ms(self) -> int:
        # Monotonic: the time of day may be set back, which would prolong every back-off.
        return int(self._clock.monotonic_s() * 1000)
