"""Requests reach the active controller, wherever it is. Sockets are real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.quorum.controller_channel import ControllerChannel
from isotherm.broker.metadata.quorum.controller_connection import (
    ControllerConnection,
    ControllerVersions,
)
from isotherm.broker.metadata.quorum.controller_discovery import QuorumLeader
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import SystemClock
from isotherm.errors import NotEnoughMemoryError, PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from tests.support.scripted_peer import ScriptedPeer

# Ends a test that hangs. No assertion depends on it.
PATIENT_S = 300.0
REQUEST = AllocateProducerIdsRequest(broker_id=5, broker_epoch=1)


class Quorum:
    """The controllers. `leader` is the one that the observer knows."""

    def __init__(self) -> None:
        self.leader = QuorumLeader(0)
        self.peers: list[ScriptedPeer] = []

    def controller(self, answer: Callable[[object], object]) -> ScriptedPeer:
        self.peers.append(ScriptedPeer(answer))
        return self.peers[-1]

    def elect(self, peer: ScriptedPeer) -> None:
        self.leader = QuorumLeader(self.leader.epoch + 1, 100, peer.address)

    def connection(
        self, greet: Callable[[NodeConnection], None] | None = None
    ) -> ControllerConnection:
        return ControllerConnection(
            lambda: self.leader,
            lambda address: NodeConnection(
                address,
                client_id="test",
                connect_timeout_s=PATIENT_S,
                request_timeout_s=PATIENT_S,
                response_bytes_max=1 << 20,
            ),
            SystemClock(),
            greet,
        )


@pytest.fixture
def quorum() -> Iterator[Quorum]:
    made = Quorum()
    yield made
    for peer in made.peers:
        peer.stop()


@pytest.fixture
def open_channel(quorum: Quorum) -> Iterator[Callable[..., ControllerChannel]]:
    opened: list[ControllerChannel] = []

    def open_one(requests_max: int = 10) -> ControllerChannel:
        channel = ControllerChannel(
            "test", quorum.connection(), SystemClock(), requests_max=requests_max
        )
        channel.start()
        opened.append(channel)
        return channel

    yield open_one
    for channel in opened:
        channel.stop()


def block(start: int) -> dict[str, object]:
    return {"producer_id_start": start, "producer_id_len": 1000}


def test_request_waits_for_a_leader_and_reaches_it(quorum, open_channel):
    peer = quorum.controller(lambda _: block(7))
    answer = open_channel().send(REQUEST, timeout_s=PATIENT_S)
    assert not answer.done()
    quorum.elect(peer)
    assert answer.result(PATIENT_S).producer_id_start == 7


def test_controller_that_is_not_active_any_more_is_left_for_the_next(quorum, open_channel):
    def refuse(_request: object) -> dict[str, object]:
        quorum.elect(new)
        return {"error_code": ErrorCode.not_controller}

    old, new = quorum.controller(refuse), quorum.controller(lambda _: block(8))
    quorum.elect(old)
    assert open_channel().send(REQUEST, timeout_s=PATIENT_S).result().producer_id_start == 8


def test_controller_that_hangs_up_is_asked_again(quorum, open_channel):
    answers = iter([None, None, block(9)])
    quorum.elect(quorum.controller(lambda _: next(answers)))
    assert open_channel().send(REQUEST, timeout_s=PATIENT_S).result().producer_id_start == 9


def test_other_errors_are_the_callers(quorum, open_channel):
    quorum.elect(quorum.controller(lambda _: {"error_code": ErrorCode.stale_broker_epoch}))
    answer = open_channel().send(REQUEST, timeout_s=PATIENT_S).result()
    assert answer.error_code == ErrorCode.stale_broker_epoch


def test_request_without_a_controller_times_out_with_the_reason(open_channel):
    with pytest.raises(PeerTimeoutError, match="the active controller is not known"):
        open_channel().send(REQUEST, timeout_s=0.01).result(PATIENT_S)


def test_requests_are_sent_one_after_the_other_and_more_than_may_wait_are_refused(
    quorum, open_channel
):
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer(_request: object) -> dict[str, object]:
        is_asked.set()
        may_answer.wait()
        return block(1)

    quorum.elect(quorum.controller(answer))
    channel = open_channel(requests_max=1)
    first = channel.send(REQUEST, timeout_s=PATIENT_S)
    is_asked.wait()
    second = channel.send(REQUEST, timeout_s=PATIENT_S)
    with pytest.raises(NotEnoughMemoryError, match=r"key=controller\.requests\.max"):
        channel.send(REQUEST, timeout_s=PATIENT_S).result()
    may_answer.set()
    assert first.result(PATIENT_S) == second.result(PATIENT_S)


def test_stop_ends_what_waits_and_what_comes(quorum, open_channel):
    is_asked, is_over = threading.Event(), threading.Event()

    def answer(_request: object) -> None:
        is_asked.set()
        is_over.wait()

    quorum.elect(quorum.controller(answer))
    channel = open_channel()
    answers = [channel.send(REQUEST, timeout_s=PATIENT_S) for _ in range(3)]
    is_asked.wait()
    channel.stop()
    for future in (*answers, channel.send(REQUEST, timeout_s=PATIENT_S)):
        with pytest.raises(PeerDisconnectedError):
            future.result(PATIENT_S)
    is_over.set()


def test_stop_passes_over_requests_that_were_cancelled_while_they_waited(quorum, open_channel):
    is_asked, is_over = threading.Event(), threading.Event()

    def answer(_request: object) -> None:
        is_asked.set()
        is_over.wait()

    quorum.elect(quorum.controller(answer))
    channel = open_channel()
    answers = [channel.send(REQUEST, timeout_s=PATIENT_S) for _ in range(3)]
    is_asked.wait()
    assert answers[1].cancel()
    try:
        channel.stop()
    finally:
        is_over.set()
    for future in (answers[0], answers[2]):
        with pytest.raises(PeerDisconnectedError):
            future.result(PATIENT_S)


def test_versions_of_each_controller_are_learnt_before_it_is_asked(quorum):
    def controller(last: int) -> ScriptedPeer:
        row = {"api_key": ApiKey.CREATE_TOPICS, "min_version": 2, "max_version": last}
        return quorum.controller(
            lambda request: block(1) if type(request) is type(REQUEST) else {"api_keys": [row]}
        )

    versions = ControllerVersions()
    connection = quorum.connection(versions.learn)
    peers = [controller(last) for last in (5, 7)]
    for peer, last in zip(peers, (5, 7), strict=True):
        quorum.elect(peer)
        for _ in range(2):
            assert connection.ask(REQUEST, timeout_s=PATIENT_S).producer_id_start == 1
        assert versions.served == {ApiKey.CREATE_TOPICS: VersionRange(2, last)}
        asked = [type(each).__api_key__ for each in peer.requests]
        assert asked == [ApiKey.API_VERSIONS, *[ApiKey.ALLOCATE_PRODUCER_IDS] * 2]
    connection.close()
