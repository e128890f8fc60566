"""Proposes changes of the ISR to the active controller (AlterPartition, KIP-497).

    submit ──► waiting, one per partition ──► one request with all that wait ──► one answer each
                   ▲                                        │
                   └── request failed or not answered: all of it is sent again after a pause

A change waits until the controller has answered it, for as long as that takes: without an answer
the leader does not know which ISR the controller has. Source: Kafka AlterPartitionManager.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import LeaderRecoveryState
from isotherm.broker.metadata.quorum.controller_channel import Send
from isotherm.broker.partitions.replication.cluster_view import OnIsrAnswer
from isotherm.broker.partitions.replication.in_sync_replicas import IsrAnswer, IsrChange
from isotherm.broker.threads.step_thread import UNTIL_WOKEN_S, StepThread
from isotherm.clock import Clock
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.remote.outages import Outage
from isotherm.types import BrokerId, TopicIdPartition

logger = logging.getLogger(__name__)

VERSION = 3
"""The first version with the brokers' epochs: metadata.version 3.5 and later."""
REQUEST_TIMEOUT_S = 30.0
"""The time in which the channel tries to reach a controller before a new request replaces this
one.
"""
PAUSE_S = 0.05
"""The pause after a failed request, as in Kafka. It also follows an answer with an error, because
the partition may propose the same change again."""


class _Proposal(NamedTuple):
    change: IsrChange
    on_answer: OnIsrAnswer


class AlterPartitionManager:
    """Thread-safe. At most one change per partition waits, so partitions bound the changes."""

    def __init__(
        self,
        broker_id: BrokerId,
        send: Send,
        *,
        broker_epoch: Callable[[], int],
        clock: Clock,
    ) -> None:
        """`send` is that of a ControllerChannel.

        `broker_epoch` returns the epoch of the current registration.
        """
        self._broker_id = broker_id
        self._send = send
        self._broker_epoch = broker_epoch
        self._outage = Outage(
            logger,
            clock,
            failing="AlterPartition is not accepted and is sent again",
            working="AlterPartition is accepted again",
        )
        self._waiting: dict[TopicIdPartition, _Proposal] = {}
        self._guard = threading.Lock()
        self._thread = StepThread("isotherm-alter-partition", self._step, clock)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Changes that wait are dropped without an answer, since the broker stops
        leading.

        Stop the channel first; otherwise this call waits for the channel's answer.
        """
        self._thread.stop()

    def submit(
        self, partition: TopicIdPartition, change: IsrChange, on_answer: OnIsrAnswer
    ) -> None:
        """Propose `change`. `on_answer` is called once, on this manager's thread.

        If an earlier change of the partition is not answered yet, `on_answer` is called at once, on
        the caller's thread, with OPERATION_NOT_ATTEMPTED.
        """
        with self._guard:
            is_first = partition not in self._waiting
            if is_first:
                self._waiting[partition] = _Proposal(change, on_answer)
        # Without the lock: it waits for the partition's lock, which appends hold while they write.
        if is_first:
            self._thread.wake()
        else:
            on_answer(IsrAnswer(ErrorCode.operation_not_attempted))

    def _step(self) -> float:
        with self._guard:
            # A copy. Changes stay in `_waiting` until they are answered, so a failed request sends
            # them again, together with those that were submitted meanwhile.
            proposals = dict(self._waiting)
        if not proposals:
            return UNTIL_WOKEN_S
        try:
            is_clean = self._ask(proposals)
        # The boundary of the thread: if it ended, no ISR would change any more.
        except Exception:
            logger.exception("AlterPartition failed, and is tried again")
            is_clean = False
        if not is_clean:
            # New changes do not shorten the pause.
            self._thread.pause(PAUSE_S)
        return 0

    def _ask(self, proposals: dict[TopicIdPartition, _Proposal]) -> bool:
        """Send all of `proposals` and pass the answers on; returns whether there was no error."""
        request = self._request(proposals)
        try:
            # Waits without a limit of its own: the channel's future fails after the timeout, and
            # once the channel stops.
            response = self._send(request, timeout_s=REQUEST_TIMEOUT_S).result()
        except IsothermError as error:
            self._outage.failed(error)
            return False
        if response.error_code is not ErrorCode.none:
            self._outage.failed(
                f"error={code_name(response.error_code)} broker_epoch={request.broker_epoch}"
            )
            return False
        self._outage.worked()
        answers = _answers(response, proposals)
        for partition in proposals.keys() - answers.keys():
            logger.warning("the AlterPartition response lacks a partition partition=%s", partition)
        is_clean = proposals.keys() <= answers.keys()
        for partition, proposal in proposals.items():
            answer = answers.get(partition)
            # Sent again, as in Kafka: the controller may have changed the ISR.
            if answer is None:
                continue
            with self._guard:
                # Removed before the call, because `on_answer` may submit another change.
                del self._waiting[partition]
            is_clean = is_clean and answer.error is ErrorCode.none
            proposal.on_answer(answer)
        return is_clean

    def _request(self, proposals: dict[TopicIdPartition, _Proposal]) -> Any:
        partitions: dict[uuid.UUID, list[dict[str, Any]]] = {}
        for place, proposal in sorted(proposals.items()):
            partitions.setdefault(place.topic_id, []).append(_fields(place, proposal.change))
        return entity_of(
            request_class(ApiKey.ALTER_PARTITION, VERSION),
            {
                "broker_id": self._broker_id,
                # Read for each request: after a new registration the controller refuses the old
                # epoch, and a request with it would be sent for ever.
                "broker_epoch": self._broker_epoch(),
                "topics": [
                    {"topic_id": topic_id, "partitions": changed}
                    for topic_id, changed in partitions.items()
                ],
            },
        )


def _fields(place: TopicIdPartition, change: IsrChange) -> dict[str, Any]:
    return {
        "partition_index": place.partition,
        "leader_epoch": change.leader_epoch,
        "new_isr_with_epochs": [
            {"broker_id": broker_id, "broker_epoch": epoch}
            for broker_id, epoch in zip(change.isr, change.broker_epochs, strict=True)
        ],
        # A leader that proposes a change has recovered, even if the image still says RECOVERING.
        "leader_recovery_state": LeaderRecoveryState.RECOVERED,
        "partition_epoch": change.partition_epoch,
    }


def _answers(
    response: Any, proposals: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, IsrAnswer]:
    """The answers by requested partition. The response has topic ids, not names."""
    places = {(proposal.topic_id, proposal.partition): proposal for proposal in proposals}
    return {
        place: IsrAnswer(
            answer.error_code, tuple(answer.isr), answer.leader_epoch, answer.partition_epoch
        )
        for topic in response.topics
        for answer in topic.partitions
        if (place := places.get((topic.topic_id, answer.partition_index))) is not None
    }
