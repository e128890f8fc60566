"""The partitions of a coordinator's topic that this broker coordinates, with the state of each.

    elected(e) ──> LOADING ──the log is folded──> ACTIVE ──resigned(e' > e, or none)──> gone
                      └──────the fold fails─────> FAILED ──resigned, or elected(e' > e)

Invariants
- A shard is the fold of its partition's log, from the log start to the log end. A worker thread
  folds one partition at a time. After that the shard is used on the event loop only.
- A shard's epoch is the partition's leader epoch. An append under another epoch is refused, so a
  shard never appends to a log that it has not followed (`CoordinatorTopic.append`).
- A resignation drops the shard at once: a running fold is abandoned, and waiting requests get
  NOT_COORDINATOR. The log keeps everything.
- A request is answered when everything that the shard appended before is committed
  (`CoordinatorShard.wait_committed`). With one replica there is no wait.

Source: Kafka CoordinatorRuntime, TransactionStateManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from isotherm.broker.shared_futures import shared, shared_result
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IsothermError,
    LogDirFailedError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
)
from isotherm.remote.outages import log_failure
from isotherm.types import NO_LEADER_EPOCH, LeaderEpoch

logger = logging.getLogger(__name__)


class CoordinatorShard:
    """The state of one partition of the coordinator's topic. Once open, it is used on the event
    loop thread only.

    `epoch` is the coordinator epoch.
    """

    def __init__(self, index: int, epoch: LeaderEpoch = NO_LEADER_EPOCH) -> None:
        self.index = index
        self.epoch = epoch
        self.is_closed = False
        # Done when the last append is committed. None if it was committed at once.
        self._last_append: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] | None = None

    def note_append(self, committed: asyncio.Future[None] | None) -> None:
        """Remember the result of `CoordinatorTopic.append`. Appends are committed in order, so the
        last one is enough."""
        self._last_append = None if committed is None else shared(committed)

    @property
    def is_committed(self) -> bool:
        """Whether everything that the shard has appended is committed."""
        last = self._last_append
        if last is None:
            return True
        if last.done() and not last.cancelled() and last.exception() is None:
            self._last_append = None
            return True
        return False

    async def wait_committed(self, timeout_s: float | None = None) -> None:
        """Return when everything appended until now is committed.

        Raises NotCoordinatorError if this broker stops being the coordinator before: the records
        may be lost.
        Raises CoordinatorNotAvailableError after the timeout: they may be committed later. The
        client retries after both.
        """
        last = self._last_append
        while last is not None:
            if self.is_closed:
                raise NotCoordinatorError(f"the coordinator has moved partition={self.index}")
            if last.done():
                _raise_mapped(_error_of(last), self.index)
                return
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait(
                {last, self._closed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise CoordinatorNotAvailableError(
                    f"records are not committed in time partition={self.index}"
                    f" timeout_s={timeout_s}"
                )

    def close(self) -> None:
        """Fail waiting requests, because this broker is not the coordinator of the partition any
        more.
        """
        self.is_closed = True
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)


def _error_of(future: asyncio.Future[None]) -> BaseException | None:
    # Returned and not raised, because the waiting request itself was not cancelled.
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _raise_mapped(error: BaseException | None, index: int) -> None:
    if error is None:
        return
    if isinstance(error, (NotLeaderOrFollowerError, LogDirFailedError)):
        raise NotCoordinatorError(f"the coordinator has moved partition={index}") from error
    raise CoordinatorNotAvailableError(f"records are not committed partition={index}") from error


class LoadAbandonedError(Exception):
    """The partition was resigned while its log was folded."""


Shard = TypeVar("Shard", bound=CoordinatorShard)


class Election:
    """One partition from its election to its resignation.

    The fold of its log calls `check_current` in its thread.
    """

    __slots__ = ("epoch", "has_failed", "is_current")

    def __init__(self, epoch: LeaderEpoch) -> None:
        self.epoch = epoch
        self.has_failed = False
        self.is_current = True

    def check_current(self) -> None:
        """Raise LoadAbandonedError after the resignation."""
        if not self.is_current:
            raise LoadAbandonedError


class CoordinatorShards(Generic[Shard]):
    """The shards of one coordinator. Event loop thread only."""

    def __init__(
        self,
        topic_name: str,
        *,
        fold: Callable[[int, Election], Shard],
        new_shard: Callable[[int], Shard | None],
        opened: Callable[[Shard], None],
    ) -> None:
        """`fold(index, election)` reads the partition's log in a worker thread. It calls
        `election.check_current` regularly. `new_shard` returns the shard of an empty log, and None
        for any other log. `opened` is called with each shard that becomes active."""
        self._topic_name = topic_name
        self._fold = fold
        self._new_shard = new_shard
        self._opened = opened
        self._elections: dict[int, Election] = {}
        self._active: dict[int, Shard] = {}
        self._to_load: deque[tuple[int, Election]] = deque()
        self._loading: asyncio.Task[None] | None = None
        self._is_stopped = False

    # ---- look-ups

    def active(self) -> Iterator[Shard]:
        return iter(tuple(self._active.values()))

    def find(self, index: int) -> Shard | None:
        """The shard if it is active, else None."""
        return self._active.get(index)

    def at(self, index: int) -> Shard:
        """The active shard. Raises CoordinatorLoadInProgressError while it is being loaded, else
        NotCoordinatorError."""
        shard = self._active.get(index)
        if shard is not None:
            return shard
        election = self._elections.get(index)
        if election is not None and not election.has_failed:
            raise CoordinatorLoadInProgressError(
                f"the coordinator is being loaded partition={self._topic_name}-{index}"
            )
        raise NotCoordinatorError(
            f"this broker is not the coordinator partition={self._topic_name}-{index}"
        )

    @property
    def is_loading(self) -> bool:
        return any(
            not election.has_failed and index not in self._active
            for index, election in self._elections.items()
        )

    def counts(self) -> dict[str, int]:
        """The partitions that this broker leads, by their state. Any thread."""
        elections = tuple(self._elections.values())
        failed, active = sum(election.has_failed for election in elections), len(self._active)
        return {
            "loading": max(0, len(elections) - failed - active),
            "active": active,
            "failed": failed,
        }

    # ---- leadership

    def on_election(self, index: int, leader_epoch: LeaderEpoch) -> None:
        """This broker leads the partition. No effect if this epoch or a newer one is known."""
        if self._is_stopped:
            return
        election = self._elections.get(index)
        if election is not None:
            if election.epoch >= leader_epoch:
                return
            election.epoch = leader_epoch
            if index in self._active:
                # The shard stays: this broker led all the time, and a leader truncates nothing.
                self._active[index].epoch = leader_epoch
                return
            if not election.has_failed:
                return
        election = self._elections[index] = Election(leader_epoch)
        try:
            shard = self._new_shard(index)
        except IsothermError as error:
            self._fail(index, election, error)
            return
        if shard is not None:
            self._open(index, election, shard)
            return
        self._to_load.append((index, election))
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    def on_resignation(self, index: int, leader_epoch: LeaderEpoch | None) -> None:
        """This broker does not lead the partition since `leader_epoch`.

        None means that it has no replica.
        """
        election = self._elections.get(index)
        if election is None or (leader_epoch is not None and leader_epoch <= election.epoch):
            return
        election.is_current = False
        del self._elections[index]
        shard = self._active.pop(index, None)
        if shard is not None:
            shard.close()
            logger.info("coordinator resigns partition=%s-%d", self._topic_name, index)

    async def wait_until_loaded(self) -> None:
        """Return when no partition is being loaded or waits for it."""
        while self._loading is not None:
            await shared_result(self._loading)

    async def stop(self) -> None:
        """Resign every partition, and wait for the running fold to end."""
        self._is_stopped = True
        for index in tuple(self._elections):
            self.on_resignation(index, None)
        self._to_load.clear()
        await self.wait_until_loaded()

    # ---- loading

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._to_load:
                index, election = self._to_load.popleft()
                if not election.is_current:
                    continue
                try:
                    # In a thread: folding a long partition would block the event loop.
                    shard = await loop.run_in_executor(None, self._fold, index, election)
                except LoadAbandonedError:
                    continue
                # The boundary of the task: a record that breaks its fold must not prevent the
                # loading of the other partitions.
                except Exception as error:  # noqa: BLE001
                    if election.is_current:
                        self._fail(index, election, error)
                    continue
                if election.is_current:
                    self._open(index, election, shard)
        finally:
            self._loading = None

    def _open(self, index: int, election: Election, shard: Shard) -> None:
        shard.epoch = election.epoch
        self._active[index] = shard
        try:
            self._opened(shard)
        except IsothermError as error:
            # The partition was deleted or lost its leadership meanwhile.
            del self._active[index]
            shard.close()
            self._fail(index, election, error)

    def _fail(self, index: int, election: Election, error: Exception) -> None:
        election.has_failed = True
        log_failure(
            logger,
            error,
            "coordinator cannot be loaded, its requests are refused"
            f" partition={self._topic_name}-{index} epoch={election.epoch}",
        )
