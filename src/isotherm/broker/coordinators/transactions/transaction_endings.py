"""Ends prepared transactions: every partition gets its marker, then the transaction is complete.

    PREPARE committed ──> markers, some per loop iteration ──all written──> COMPLETE
                             ^        │ not now
                             └─back-off┘

A marker is written only once PREPARE is committed. Otherwise another coordinator that lacks the
record could decide differently. An end continues until it is complete or the shard is closed. The
next coordinator of the partition finds PREPARE in the log and starts again; a marker that is
written twice is harmless.
Source: Kafka TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from isotherm.broker.coordinators.transactions.transaction_shard import Ending, TransactionShard
from isotherm.broker.coordinators.transactions.transaction_state import (
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from isotherm.errors import IsothermError
from isotherm.remote.outages import log_failure
from isotherm.types import LeaderEpoch, TopicPartition

logger = logging.getLogger(__name__)

# A marker takes about 60 µs. This bounds the time that one iteration of the event loop may take.
MARKERS_PER_TURN = 32
# A new leader is known within some hundred milliseconds. An offline partition may take hours.
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MS_MAX = 2000


class EndMarker(NamedTuple):
    """The content of a marker.

    `transaction_version` is the client's; from 2 on the end has raised the epoch.
    """

    producer: ProducerIdAndEpoch
    commit: bool
    coordinator_epoch: LeaderEpoch
    transaction_version: int = 0


class MarkerResult(enum.Enum):
    SETTLED = "settled"  # written, or not needed any more
    RETRY = "retry"  # the leader is elsewhere, or cannot write it now
    FENCED = "fenced"  # a newer coordinator has the transaction


class MarkerOutcome(NamedTuple):
    result: MarkerResult
    reason: str = ""


SETTLED = MarkerOutcome(MarkerResult.SETTLED)


class MarkerWriter(Protocol):
    def write(
        self, marker: EndMarker, topic_partition: TopicPartition
    ) -> MarkerOutcome | asyncio.Future[MarkerOutcome]:
        """Write a marker to the partition's leader.

        Returns a future if that takes longer than an append.
        """


class TransactionEndings:
    """Event loop thread only."""

    def __init__(
        self,
        markers: MarkerWriter,
        complete: Callable[[TransactionShard, TransactionMetadata], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`complete` appends COMPLETE.

        It may raise IsothermError, and is then called again later.
        """
        self._markers = markers
        self._complete = complete
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, shard: TransactionShard, prepared: TransactionMetadata) -> asyncio.Future[None]:
        """End a prepared transaction. The future is done when the end is complete, or has to wait
        for another broker or replica.

        If PREPARE is committed, the first markers are written at once.
        """
        ending = Ending(
            shard, prepared, deque(sorted(prepared.partitions)), self._loop.create_future()
        )
        shard.endings.add(ending)
        if shard.is_committed:
            self._write_markers(ending)
            return ending.settled
        # The client waits for the commit itself
        # (`TransactionCoordinator.end_transaction`), not for these markers.
        ending.settle()
        task = self._loop.create_task(self._begin_once_committed(ending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ending.settled

    async def _begin_once_committed(self, ending: Ending) -> None:
        try:
            # Without a timeout: a PREPARE that is committed late still needs its markers.
            await ending.shard.wait_committed()
        except IsothermError:
            # Either the next coordinator has the record, or the record is lost and nothing was
            # decided.
            logger.info(
                "the next coordinator completes the transaction transactional_id=%s partition=%d",
                ending.metadata.transactional_id,
                ending.shard.index,
            )
            self._leave(ending)
            return
        self._write_markers(ending)

    def _write_markers(self, ending: Ending) -> None:
        if ending.shard.is_closed:
            self._leave(ending)
            return
        metadata = ending.metadata
        # Made anew each time: the shard's epoch rises if this broker is elected again.
        marker = EndMarker(
            metadata.producer,
            metadata.is_commit,
            ending.shard.epoch,
            metadata.client_transaction_version,
        )
        for _ in range(min(MARKERS_PER_TURN, len(ending.unmarked))):
            topic_partition = ending.unmarked.popleft()
            outcome = self._markers.write(marker, topic_partition)
            if isinstance(outcome, MarkerOutcome):
                _take(ending, topic_partition, outcome)
            else:
                ending.unanswered += 1
                outcome.add_done_callback(partial(self._on_answer, ending, topic_partition))
        if ending.unmarked:
            # In another loop iteration, so that other requests run in between.
            self._loop.call_soon(self._write_markers, ending)
        elif ending.unanswered:
            ending.settle()
        else:
            self._finish_round(ending)

    def _on_answer(
        self,
        ending: Ending,
        topic_partition: TopicPartition,
        answer: asyncio.Future[MarkerOutcome],
    ) -> None:
        ending.unanswered -= 1
        if answer.cancelled():
            outcome = MarkerOutcome(MarkerResult.RETRY, "the broker stops")
        else:
            outcome = answer.result()
        _take(ending, topic_partition, outcome)
        if not ending.unanswered and not ending.unmarked:
            self._finish_round(ending)

    def _finish_round(self, ending: Ending) -> None:
        """Complete the transaction if every marker is written, else retry the rest after a
        back-off.
        """
        # A fenced end is the newer coordinator's, which has found PREPARE in the log, too. As in
        # Kafka, no COMPLETE is appended here.
        if ending.shard.is_closed or ending.is_fenced:
            self._leave(ending)
            return
        if not ending.again:
            try:
                self._complete(ending.shard, ending.metadata)
            except IsothermError as error:
                _log_refusal(ending, error)
            else:
                self._leave(ending)
                return
        # If COMPLETE alone was refused, nothing is left to mark, and the next
        # round tries COMPLETE again.
        ending.unmarked.extend(ending.again)
        ending.again.clear()
        # The shift is bounded because attempts are not: a partition may be offline for hours.
        backoff_ms = min(RETRY_BACKOFF_MS << min(ending.attempts, 10), RETRY_BACKOFF_MS_MAX)
        ending.attempts += 1
        ending.timer = self._loop.call_later(backoff_ms / 1000, self._write_markers, ending)
        ending.settle()

    @staticmethod
    def _leave(ending: Ending) -> None:
        ending.shard.endings.discard(ending)
        ending.settle()


def _log_refusal(ending: Ending, error: IsothermError) -> None:
    # Once: it is tried again every RETRY_BACKOFF_MS_MAX, or by the next coordinator. Ordinary while
    # the partition moves or has too few replicas in sync.
    if type(error) not in ending.logged_refusals:
        ending.logged_refusals.add(type(error))
        transactional_id = ending.metadata.transactional_id
        log_failure(
            logger, error, f"a transaction is completed later transactional_id={transactional_id}"
        )


def _take(ending: Ending, topic_partition: TopicPartition, outcome: MarkerOutcome) -> None:
    result, reason = outcome
    if result is MarkerResult.RETRY:
        ending.again.append(topic_partition)
    elif result is MarkerResult.FENCED:
        ending.is_fenced = True
    if reason and not ending.attempts:
        # Logged in the first round only: the same leader may be tried for hours. INFO: a leader
        # that moves refuses markers, and a newer coordinator or producer has ended the transaction.
        logger.info(
            "a marker is not written partition=%s transactional_id=%s result=%s reason=%s",
            topic_partition,
            ending.metadata.transactional_id,
            result.value,
            reason,
        )
