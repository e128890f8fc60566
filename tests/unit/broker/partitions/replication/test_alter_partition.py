"""AlterPartition requests: one in flight, with all changes that wait, and one change per
partition."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Queue
from typing import Any

import pytest
from kio.schema.alter_partition.v3 import response as v3
from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.replication.alter_partition import AlterPartitionManager
from isotherm.broker.partitions.replication.in_sync_replicas import IsrAnswer, IsrChange
from isotherm.clock import SystemClock
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.entities import entity_of
from isotherm.types import TopicIdPartition

T, U = (uuid.UUID(int=number) for number in (7, 8))
ZERO, ONE, OTHER = (
    TopicIdPartition(T, "t", 0),
    TopicIdPartition(T, "t", 1),
    TopicIdPartition(U, "u", 0),
)
# Ends a test that hangs. No assertion depends on it.
TIMEOUT_S = 300


def change(*isr: int, partition_epoch: int = 3) -> IsrChange:
    return IsrChange(isr, tuple(100 + each for each in isr), None, 5, partition_epoch)


def partition_answer(index: int, error: ErrorCode = ErrorCode.none, **more: Any) -> dict[str, Any]:
    fields = {"leader_id": 1, "leader_epoch": 5, "isr": (1, 2), "partition_epoch": 4}
    return {"partition_index": index, "error_code": error, **fields, **more}


def response(*topics: tuple[uuid.UUID, list[dict[str, Any]]], error: int = 0) -> Any:
    return entity_of(
        v3.AlterPartitionResponse,
        {
            "throttle_time": datetime.timedelta(),
            "error_code": ErrorCode(error),
            "topics": [{"topic_id": topic, "partitions": parts} for topic, parts in topics],
        },
    )


class Channel:
    """A controller channel whose requests the test answers one by one."""

    def __init__(self) -> None:
        self.sent: Queue[tuple[Any, Future[Any]]] = Queue()
        self.futures: list[Future[Any]] = []
        self.is_stopped = False

    def send(self, request: Any, *, timeout_s: float) -> Future[Any]:
        answer: Future[Any] = Future()
        self.futures.append(answer)
        if self.is_stopped:
            answer.set_exception(PeerDisconnectedError("stopped"))
        self.sent.put((request, answer))
        return answer

    def stop(self) -> None:
        self.is_stopped = True
        for answer in self.futures:
            if not answer.done():
                answer.set_exception(PeerDisconnectedError("stopped"))

    def next(self) -> tuple[Any, Future[Any]]:
        return self.sent.get(timeout=TIMEOUT_S)


class Asker:
    """A manager of ISR changes with its channel, and the answers that it delivered."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.epoch = 40
        self.answers: Queue[tuple[TopicIdPartition, IsrAnswer]] = Queue()
        self.manager = AlterPartitionManager(
            1, self.channel.send, broker_epoch=lambda: self.epoch, clock=SystemClock()
        )

    def submit(self, partition: TopicIdPartition, asked: IsrChange) -> None:
        self.manager.submit(partition, asked, self.listener(partition))

    def listener(self, partition: TopicIdPartition) -> Callable[[IsrAnswer], None]:
        return lambda answer: self.answers.put((partition, answer))

    def next_answer(self) -> tuple[TopicIdPartition, IsrAnswer]:
        return self.answers.get(timeout=TIMEOUT_S)


@pytest.fixture
def asker() -> Iterator[Asker]:
    made = Asker()
    yield made
    made.channel.stop()
    made.manager.stop()


def test_one_request_has_all_that_wait(asker: Asker) -> None:
    for place in (ZERO, OTHER, ONE):
        asker.submit(place, change(1, 2))
    asker.manager.start()
    request, answer = asker.channel.next()
    assert (request.broker_id, request.broker_epoch) == (1, 40)
    assert [
        (topic.topic_id, [partition.partition_index for partition in topic.partitions])
        for topic in request.topics
    ] == [(T, [0, 1]), (U, [0])]
    (first, _) = request.topics[0].partitions
    assert [(broker.broker_id, broker.broker_epoch) for broker in first.new_isr_with_epochs] == [
        (1, 101),
        (2, 102),
    ]
    assert (first.leader_epoch, first.partition_epoch, first.leader_recovery_state) == (5, 3, 0)
    refused = ErrorCode.ineligible_replica
    answer.set_result(
        response(
            (T, [partition_answer(0), partition_answer(1, refused)]), (U, [partition_answer(0)])
        )
    )
    answers = dict(asker.next_answer() for _ in range(3))
    assert answers[ZERO] == IsrAnswer(ErrorCode.none, (1, 2), 5, 4)
    assert answers[ONE].error is refused


def test_second_change_of_a_partition_is_not_attempted(asker: Asker) -> None:
    asker.submit(ZERO, change(1, 2))
    asker.submit(ZERO, change(1))
    assert asker.next_answer() == (ZERO, IsrAnswer(ErrorCode.operation_not_attempted))
    asker.manager.start()
    _, answer = asker.channel.next()
    # The first change is still in flight.
    asker.submit(ZERO, change(1))
    assert asker.next_answer()[1].error is ErrorCode.operation_not_attempted
    answer.set_result(response((T, [partition_answer(0)])))
    assert asker.next_answer()[1].error is ErrorCode.none
    asker.submit(ZERO, change(1))
    request, _ = asker.channel.next()
    assert len(request.topics[0].partitions[0].new_isr_with_epochs) == 1


def test_only_one_request_is_on_its_way(asker: Asker) -> None:
    asker.manager.start()
    asker.submit(ZERO, change(1, 2))
    _, answer = asker.channel.next()
    asker.submit(ONE, change(1, 2))
    assert asker.channel.sent.empty()
    answer.set_result(response((T, [partition_answer(0)])))
    assert asker.next_answer()[0] == ZERO
    request, _ = asker.channel.next()
    assert [partition.partition_index for partition in request.topics[0].partitions] == [1]


@pytest.mark.parametrize(
    "failure",
    [
        response(error=ErrorCode.stale_broker_epoch),
        response(error=ErrorCode.unknown_server_error),
        PeerTimeoutError("no controller"),
        response((T, [])),
    ],
)
def test_request_without_answers_is_sent_again_as_things_are_then(
    asker: Asker, failure: Any
) -> None:
    asker.manager.start()
    asker.submit(ZERO, change(1, 2))
    _, answer = asker.channel.next()
    asker.epoch = 41
    if isinstance(failure, Exception):
        answer.set_exception(failure)
    else:
        answer.set_result(failure)
    request, answer = asker.channel.next()
    assert request.broker_epoch == 41
    assert asker.answers.empty()
    answer.set_result(response((T, [partition_answer(0)])))
    assert asker.next_answer() == (ZERO, IsrAnswer(ErrorCode.none, (1, 2), 5, 4))
