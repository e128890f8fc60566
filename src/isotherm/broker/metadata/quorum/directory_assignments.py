"""Reports to the controller in which log directory each replica of this broker lies (KIP-858).

A broker with one directory reports nothing, because the controller fills it in itself. For each
replica the latest directory is reported. Before a request, entries are dropped whose replica is
gone or whose directory the metadata already has. Source: Kafka AssignmentsManager.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.quorum.controller_channel import Send
from isotherm.broker.threads.step_thread import UNTIL_WOKEN_S, StepThread
from isotherm.clock import Clock
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.remote.outages import Outage
from isotherm.types import BrokerId, TopicIdPartition

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX = 2250  # Kafka: AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST
FIRST_DELAY_S = 0.1
BACKOFF_MAX_S = 10.0
DOUBLINGS_MAX = 10  # more than it takes from FIRST_DELAY_S to BACKOFF_MAX_S
REQUEST_TIMEOUT_S = 60.0

_VERSION = 0


class DirectoryAssignments:
    """Call `start` once and `stop` last. `assign` may be called on any thread."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        send: Send,
        clock: Clock,
    ) -> None:
        """`send` is `ControllerChannel.send`."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._send = send
        self._outage = Outage(
            logger,
            clock,
            failing="log directories of replicas are not recorded yet",
            working="log directories of replicas are recorded",
        )
        # At most one entry per replica of this broker.
        self._waiting: dict[TopicIdPartition, uuid.UUID] = {}
        self._failures = 0
        self._guard = threading.Lock()
        self._thread = StepThread(
            "isotherm-directory-assignments", self._report, clock, first_delay_s=UNTIL_WOKEN_S
        )

    def start(self) -> None:
        self._thread.start()

    def assign(self, partition: TopicIdPartition, directory_id: uuid.UUID) -> None:
        """Report that the replica's log is in this directory, unless the metadata image already
        says so.
        """
        with self._guard:
            self._waiting[partition] = directory_id
        self._thread.wake()

    def stop(self) -> None:
        """End the thread.

        The next start sends the remaining reports, if the metadata image still differs.
        """
        self._thread.stop()

    def _report(self) -> float | None:
        # Without failures there is a short delay too. It collects assignments into few requests.
        # The exponent is bounded too: after 1024 failures the power would exceed a float.
        doublings = min(self._failures, DOUBLINGS_MAX)
        if self._thread.pause(min(FIRST_DELAY_S * 2**doublings, BACKOFF_MAX_S)):
            return None
        self._send_some()
        return UNTIL_WOKEN_S

    def _send_some(self) -> None:
        batch = self._next_batch()
        if not batch:
            return
        request = assignment_request(self._broker_id, self._broker_epoch(), batch)
        answer = self._send(request, timeout_s=REQUEST_TIMEOUT_S)
        try:
            response = answer.result()
        # The boundary of the thread: the entries stay and are sent again.
        except Exception as error:  # noqa: BLE001
            self._note_failure(str(error))
            return
        if response.error_code != ErrorCode.none:
            self._note_failure(code_name(response.error_code))
            return
        self._failures = 0
        self._finish(batch, response)

    def _next_batch(self) -> dict[TopicIdPartition, uuid.UUID]:
        image = self._image()
        with self._guard:
            for partition, directory_id in list(self._waiting.items()):
                if not _is_news(image, self._broker_id, partition, directory_id):
                    del self._waiting[partition]
            items = list(self._waiting.items())[:PARTITIONS_PER_REQUEST_MAX]
        return dict(items)

    def _finish(self, batch: Mapping[TopicIdPartition, uuid.UUID], response: Any) -> None:
        """Drop the entries that the controller recorded. Entries with an error are checked against
        a later image and sent again."""
        done = {
            (topic.topic_id, int(partition.partition_index))
            for directory in response.directories
            for topic in directory.topics
            for partition in topic.partitions
            if partition.error_code == ErrorCode.none
        }
        with self._guard:
            for partition, directory_id in batch.items():
                is_done = (partition.topic_id, partition.partition) in done
                # A newer directory may have been assigned while the request was in flight.
                if is_done and self._waiting.get(partition) == directory_id:
                    del self._waiting[partition]
            has_more = bool(self._waiting)
        if len(done) < len(batch):
            self._note_failure("the controller refused some of the partitions")
            return
        self._outage.worked()
        if has_more:
            self._thread.wake()

    def _note_failure(self, reason: str) -> None:
        self._outage.failed(reason)
        self._failures += 1
        self._thread.wake()


def assignment_request(
    broker_id: BrokerId, broker_epoch: int, assigned: Mapping[TopicIdPartition, uuid.UUID]
) -> Any:
    tree: dict[uuid.UUID, dict[uuid.UUID, list[int]]] = {}
    for partition, directory_id in assigned.items():
        topics = tree.setdefault(directory_id, {})
        topics.setdefault(partition.topic_id, []).append(partition.partition)
    return entity_of(
        request_class(ApiKey.ASSIGN_REPLICAS_TO_DIRS, _VERSION),
        {
            "broker_id": broker_id,
            "broker_epoch": broker_epoch,
            "directories": [
                {
                    "id_": directory_id,
                    "topics": [
                        {
                            "topic_id": topic_id,
                            "partitions": [{"partition_index": number} for number in numbers],
                        }
                        for topic_id, numbers in topics.items()
                    ],
                }
                for directory_id, topics in tree.items()
            ],
        },
    )


def _is_news(
    image: MetadataImage, broker_id: BrokerId, partition: TopicIdPartition, directory_id: uuid.UUID
) -> bool:
    topic = image.topics_by_id.get(partition.topic_id)
    if topic is None or partition.partition >= len(topic.partitions):
        return False
    recorded = topic.partitions[partition.partition].directory(broker_id)
    return recorded is not None and recorded != directory_id
