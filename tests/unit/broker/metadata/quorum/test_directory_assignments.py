"""Reports of replicas' directories to the controller: each change is sent once, and again after a
failure."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.directory_ids import UNASSIGNED
from isotherm.broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from isotherm.broker.metadata.quorum.directory_assignments import (
    PARTITIONS_PER_REQUEST_MAX,
    DirectoryAssignments,
)
from isotherm.clock import SystemClock
from isotherm.errors import PeerTimeoutError
from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.entities import blank_entity
from isotherm.types import TopicIdPartition

# Ends a test that hangs. No assertion depends on it.
PATIENT_S = 300.0
BROKER_ID = 5
TOPIC_ID, FIRST, SECOND = (uuid.UUID(int=number << 100) for number in (1, 2, 3))


def image(*directories: uuid.UUID, broker_id: int = BROKER_ID) -> MetadataImage:
    partitions = tuple(
        PartitionImage(number, (broker_id,), (broker_id,), broker_id, 0, 0, directories=(each,))
        for number, each in enumerate(directories)
    )
    topic = TopicImage("t", TOPIC_ID, partitions)
    return MetadataImage(topics_by_id={TOPIC_ID: topic}, topics_by_name={"t": topic})


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, "t", number)


class Broker:
    """The broker as the assignments see it. The test gives the controller's answers."""

    def __init__(self) -> None:
        self.image = image(*[UNASSIGNED] * 4)
        self.asked: queue.Queue[tuple[Any, Future[Any]]] = queue.Queue()
        self.assignments = DirectoryAssignments(
            BROKER_ID, lambda: 77, lambda: self.image, self._send, SystemClock()
        )

    def _send(self, request: Any, *, timeout_s: float) -> Future[Any]:
        answer: Future[Any] = Future()
        self.asked.put((request, answer))
        return answer

    def next_request(self) -> tuple[dict[uuid.UUID, list[int]], Future[Any]]:
        """The partitions by directory of the next request, and the future of its answer."""
        request, answer = self.asked.get(timeout=PATIENT_S)
        assert (request.broker_id, request.broker_epoch) == (BROKER_ID, 77)
        found = {
            directory.id_: [
                each.partition_index for topic in directory.topics for each in topic.partitions
            ]
            for directory in request.directories
        }
        return found, answer


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    made.assignments.start()
    yield made
    while not made.asked.empty():
        made.asked.get()[1].set_exception(PeerTimeoutError("the test is over"))
    made.assignments.stop()


def accepted(*numbers: int, refused: int | None = None) -> Any:
    partitions = [{"partition_index": number} for number in numbers]
    if refused is not None:
        error = ErrorCode.not_leader_or_follower
        partitions.append({"partition_index": refused, "error_code": error})
    directory = {"topics": [{"topic_id": TOPIC_ID, "partitions": partitions}]}
    return blank_entity(
        response_class(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0), {"directories": [directory]}
    )


def test_replicas_are_reported_together_and_once(broker):
    broker.assignments.assign(partition(0), FIRST)
    broker.assignments.assign(partition(1), SECOND)
    broker.assignments.assign(partition(2), FIRST)
    assigned, answer = broker.next_request()
    assert assigned == {FIRST: [0, 2], SECOND: [1]}
    answer.set_result(accepted(0, 1, 2))
    broker.assignments.assign(partition(3), FIRST)
    assigned, answer = broker.next_request()
    assert assigned == {FIRST: [3]}
    answer.set_result(accepted(3))


def test_known_and_deleted_replicas_are_not_reported(broker):
    broker.image = image(FIRST, UNASSIGNED)
    gone = TopicIdPartition(uuid.UUID(int=9), "gone", 0)
    for each in (partition(0), gone, partition(7)):
        broker.assignments.assign(each, FIRST)
    broker.assignments.assign(partition(1), FIRST)
    assigned, answer = broker.next_request()
    assert assigned == {FIRST: [1]}
    answer.set_result(accepted(1))


def test_replica_of_another_broker_is_not_reported(broker):
    broker.image = image(UNASSIGNED, broker_id=6)
    broker.assignments.assign(partition(0), FIRST)
    broker.image = image(UNASSIGNED, broker_id=6)
    broker.assignments.assign(partition(0), SECOND)
    assert broker.asked.empty()


@pytest.mark.parametrize("failure", ["silence", "error", "one refused"])
def test_failure_is_tried_again(broker, failure):
    broker.assignments.assign(partition(0), FIRST)
    broker.assignments.assign(partition(1), FIRST)
    assigned, answer = broker.next_request()
    if failure == "silence":
        answer.set_exception(PeerTimeoutError("no controller"))
    elif failure == "error":
        stale = {"error_code": ErrorCode.stale_broker_epoch}
        answer.set_result(blank_entity(response_class(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0), stale))
    else:
        answer.set_result(accepted(0, refused=1))
        assigned = {FIRST: [1]}
    again, answer = broker.next_request()
    assert again == assigned
    answer.set_result(accepted(0, 1))


class NoWaits(SystemClock):
    """Makes every backoff end at once."""

    def wait(self, event: threading.Event, _timeout_s: float) -> bool:
        return event.is_set()


def test_reports_go_on_after_any_number_of_failures():
    answers: queue.Queue[Future[Any]] = queue.Queue()
    reported = threading.Event()

    def send(_request: Any, *, timeout_s: float) -> Future[Any]:
        answer = answers.get_nowait()
        if answers.empty():
            reported.set()
        return answer

    # The delay before the last one would be 2**1024 times the first, which no float can hold.
    for _ in range(1024):
        answers.put(Future())
        answers.queue[-1].set_exception(PeerTimeoutError("no controller"))
    answers.put(Future())
    answers.queue[-1].set_result(accepted(0))
    known = image(UNASSIGNED)
    assignments = DirectoryAssignments(BROKER_ID, lambda: 77, lambda: known, send, NoWaits())
    assignments.start()
    assignments.assign(partition(0), FIRST)
    assert reported.wait(PATIENT_S)
    assignments.stop()


def test_latest_directory_counts(broker):
    broker.assignments.assign(partition(0), FIRST)
    _, answer = broker.next_request()
    broker.assignments.assign(partition(0), SECOND)
    answer.set_result(accepted(0))
    assigned, answer = broker.next_request()
    assert assigned == {SECOND: [0]}
    answer.set_result(accepted(0))


def test_many_replicas_are_reported_in_several_requests(broker):
    count = PARTITIONS_PER_REQUEST_MAX + 1
    broker.image = image(*[UNASSIGNED] * count)
    for number in range(count):
        broker.assignments.assign(partition(number), FIRST)
    assigned, answer = broker.next_request()
    assert len(assigned[FIRST]) <= PARTITIONS_PER_REQUEST_MAX
    answer.set_result(accepted(*assigned[FIRST]))
    rest, answer = broker.next_request()
    assert sorted([*assigned[FIRST], *rest[FIRST]]) == list(range(count))
    answer.set_result(accepted(*rest[FIRST]))
