"""Blocks of producer ids from the controller. The next block is requested before the last one is
used up."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.quorum.producer_ids import ProducerIdBlocks
from isotherm.errors import CoordinatorLoadInProgressError, PeerTimeoutError
from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.entities import blank_entity
from isotherm.testing.sim_clock import SimClock


class Controller:
    """A controller that answers when the test calls it."""

    def __init__(self) -> None:
        self.waiting: list[Future[Any]] = []
        self.requests: list[Any] = []

    def send(self, request: Any, *, timeout_s: float) -> Future[Any]:
        self.requests.append(request)
        self.waiting.append(Future())
        return self.waiting[-1]

    def allot(self, start: int, count: int = 1000) -> None:
        self._answer({"producer_id_start": start, "producer_id_len": count})

    def refuse(self, error: ErrorCode) -> None:
        self._answer({"error_code": error})

    def _answer(self, fields: dict[str, object]) -> None:
        response = blank_entity(response_class(ApiKey.ALLOCATE_PRODUCER_IDS, 0), fields)
        self.waiting.pop(0).set_result(response)


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def blocks(controller: Controller, clock: SimClock) -> ProducerIdBlocks:
    return ProducerIdBlocks(5, lambda: 77, controller.send, clock)


def test_first_id_waits_for_a_block(blocks, controller):
    for _ in range(3):
        with pytest.raises(CoordinatorLoadInProgressError):
            blocks.generate()
    (request,) = controller.requests
    assert (request.broker_id, request.broker_epoch) == (5, 77)
    controller.allot(4000)
    assert [blocks.generate() for _ in range(3)] == [4000, 4001, 4002]


def test_next_block_is_asked_for_at_the_id_at_90_percent(blocks, controller):
    with pytest.raises(CoordinatorLoadInProgressError):
        blocks.generate()
    controller.allot(4000)
    for _ in range(900):
        blocks.generate()
    assert len(controller.requests) == 1
    assert blocks.generate() == 4900
    assert len(controller.requests) == 2
    controller.allot(9000)
    assert [blocks.generate() for _ in range(100)][-2:] == [4999, 9000]
    assert len(controller.requests) == 2


@pytest.mark.parametrize("fails", ["error", "no answer"])
def test_failure_is_tried_again_after_a_while(blocks, controller, clock, fails):
    with pytest.raises(CoordinatorLoadInProgressError):
        blocks.generate()
    if fails == "error":
        controller.refuse(ErrorCode.stale_broker_epoch)
    else:
        controller.waiting.pop(0).set_exception(PeerTimeoutError("no controller"))
    with pytest.raises(CoordinatorLoadInProgressError):
        blocks.generate()
    assert len(controller.requests) == 1
    clock.advance(50)
    with pytest.raises(CoordinatorLoadInProgressError):
        blocks.generate()
    controller.allot(0)
    assert blocks.generate() == 0
