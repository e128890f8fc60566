"""Registration and heartbeats with a scripted controller, over real sockets."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.quorum.broker_lifecycle import BrokerState
from isotherm.broker.metadata.quorum.controller_connection import ControllerConnection
from isotherm.broker.metadata.quorum.controller_discovery import QuorumLeader
from isotherm.broker.metadata.quorum.heartbeats import BrokerHeartbeats
from isotherm.broker.metadata.quorum.registration import registration_request
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import SystemClock
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import (
    BrokerUnreachableError,
    ConfigError,
    LogDirFailedError,
    PeerDisconnectedError,
)
from isotherm.protocol.api_keys import ApiKey
from tests.support.scripted_peer import ScriptedPeer

# Ends a test that hangs. No assertion depends on it.
PATIENT_S = 300.0
DIRECTORIES = [uuid.UUID(int=number << 100) for number in (3, 1, 2)]
CONFIG = parse_broker_config(
    {
        "process.roles": "broker",
        "node.id": "5",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092",
        "broker.rack": "r",
    }
)
REQUEST = registration_request(
    CONFIG,
    cluster_id="cluster",
    incarnation_id=uuid.UUID(int=1 << 90),
    endpoints=[Endpoint("PLAINTEXT", "h", 9092)],
    log_dirs=DIRECTORIES,
    previous_broker_epoch=44,
)
REGISTERED = {"broker_epoch": 55}
ACCEPTED = {"is_caught_up": True, "is_fenced": False}


class Controller:
    """A controller that answers every registration and heartbeat with the fields set, and keeps the
    requests in order."""

    def __init__(self) -> None:
        self.registration: Mapping[str, Any] = REGISTERED
        self.heartbeat: Mapping[str, Any] | None = ACCEPTED
        self.heartbeats: queue.Queue[Any] = queue.Queue()
        self.registrations: queue.Queue[Any] = queue.Queue()
        self.peer = ScriptedPeer(self._answer)

    def _answer(self, request: Any) -> Mapping[str, Any] | None:
        if request.__api_key__ == ApiKey.BROKER_REGISTRATION:
            self.registrations.put(request)
            return self.registration
        self.heartbeats.put(request)
        return self.heartbeat

    def heartbeat_where(self, **fields: object) -> Any:
        while True:
            found = self.heartbeats.get(timeout=PATIENT_S)
            if all(getattr(found, name) == value for name, value in fields.items()):
                return found


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    yield made
    made.peer.stop()


class HurriedClock(SystemClock):
    """Real time, and what a test adds to it."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def failures() -> queue.Queue[Exception]:
    return queue.Queue()


@pytest.fixture
def heartbeats(
    controller: Controller, failures: queue.Queue[Exception], clock: HurriedClock
) -> Iterator[BrokerHeartbeats]:
    connection = ControllerConnection(
        lambda: QuorumLeader(1, 100, controller.peer.address),
        lambda address: NodeConnection(
            address,
            client_id="broker-5-heartbeat",
            connect_timeout_s=PATIENT_S,
            request_timeout_s=PATIENT_S,
            response_bytes_max=1 << 20,
        ),
        clock,
    )
    made = BrokerHeartbeats(
        5,
        connection,
        interval_ms=20,
        metadata_offset=lambda: 123,
        on_failure=failures.put,
        clock=clock,
    )
    yield made
    made.stop()


def register(heartbeats: BrokerHeartbeats) -> int:
    return heartbeats.register(REQUEST, timeout_s=PATIENT_S)


def test_registration_says_what_kafka_demands(controller, heartbeats):
    assert heartbeats.state is BrokerState.NOT_RUNNING
    assert register(heartbeats) == 55
    sent = controller.registrations.get(timeout=PATIENT_S)
    ranges = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in sent.features
    }
    # The features of a broker of Kafka 4.3.1, and one by which brokers of Isotherm know each other.
    assert ranges == {
        "remote.log.metadata.compaction": (0, 1),
        "metadata.version": (7, 30),
        "kraft.version": (0, 1),
        "group.version": (0, 1),
        "transaction.version": (0, 2),
        "eligible.leader.replicas.version": (0, 1),
        "share.version": (0, 1),
        "streams.version": (0, 1),
    }
    assert sent.log_dirs == tuple(sorted(DIRECTORIES))
    assert (sent.broker_id, sent.rack, sent.previous_broker_epoch) == (5, "r", 44)
    (listener,) = sent.listeners
    assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", "h", 9092)
    assert not sent.is_migrating_zk_broker
    assert heartbeats.state is BrokerState.STARTING


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ErrorCode.inconsistent_cluster_id, "of another cluster"),
        (ErrorCode.unsupported_version, "metadata.version=7-30"),
        (ErrorCode.invalid_registration, "directory.id"),
    ],
)
def test_registration_that_is_refused_for_good_is_not_tried_again(
    controller, heartbeats, error, named
):
    controller.registration = {"error_code": error}
    with pytest.raises(ConfigError) as raised:
        register(heartbeats)
    assert named in str(raised.value)
    assert controller.registrations.qsize() == 1


def test_registration_is_tried_until_its_time_has_passed(controller, heartbeats, clock):
    class Registrations(queue.Queue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item, block, timeout)
            if self.qsize() == 3:
                clock.ahead_s = PATIENT_S

    controller.registrations = Registrations()
    controller.registration = {"error_code": ErrorCode.duplicate_broker_registration}
    with pytest.raises(BrokerUnreachableError, match="another process with this"):
        register(heartbeats)
    assert controller.registrations.qsize() == 3


def test_life_from_the_start_to_the_stop(controller, heartbeats):
    controller.heartbeat = {"is_caught_up": False, "is_fenced": True}
    register(heartbeats)
    heartbeats.start()
    first = controller.heartbeat_where(want_fence=True)
    assert (first.broker_id, first.broker_epoch, first.current_metadata_offset) == (5, 55, 123)
    assert first.cordoned_log_dirs is None
    assert not heartbeats.caught_up.done()
    controller.heartbeat = {"is_caught_up": True, "is_fenced": True}
    heartbeats.caught_up.result(PATIENT_S)
    assert controller.heartbeat_where(cordoned_log_dirs=()).want_fence
    controller.heartbeat = ACCEPTED
    heartbeats.unfence()
    heartbeats.unfenced.result(PATIENT_S)
    assert heartbeats.state is BrokerState.RUNNING
    assert not heartbeats.is_fenced
    heartbeats.begin_controlled_shutdown()
    controller.heartbeat_where(want_shut_down=True, want_fence=False)
    assert not heartbeats.let_go.done()
    controller.heartbeat = {"should_shut_down": True}
    heartbeats.let_go.result(PATIENT_S)
    assert heartbeats.state is BrokerState.SHUTTING_DOWN


def test_errors_and_timeouts_are_retried_and_logged_once(controller, heartbeats, caplog):
    register(heartbeats)
    controller.heartbeat = {"error_code": ErrorCode.stale_broker_epoch}
    heartbeats.start()
    for _ in range(4):
        controller.heartbeat_where()
    controller.heartbeat = None
    for _ in range(2):
        controller.heartbeat_where()
    controller.heartbeat = ACCEPTED
    heartbeats.unfence()
    heartbeats.unfenced.result(PATIENT_S)
    assert caplog.text.count("another process has registered with this node.id") == 1


def test_failed_directory_is_reported_at_once(controller, heartbeats, failures):
    register(heartbeats)
    heartbeats.start()
    heartbeats.note_offline(DIRECTORIES[0], PATIENT_S)
    controller.heartbeat_where(offline_log_dirs=(DIRECTORIES[0],))
    assert failures.empty()


def test_failed_directory_that_cannot_be_reported_ends_the_membership(
    controller, heartbeats, failures
):
    register(heartbeats)
    controller.heartbeat = {"error_code": ErrorCode.stale_broker_epoch}
    heartbeats.start()
    heartbeats.note_offline(DIRECTORIES[0], 0.05)
    assert isinstance(failures.get(timeout=PATIENT_S), LogDirFailedError)


def test_registration_is_sent_again_when_asked_for(controller, heartbeats):
    register(heartbeats)
    controller.registrations.get(timeout=PATIENT_S)
    heartbeats.start()
    controller.heartbeat_where()
    heartbeats.register_again()
    assert controller.registrations.get(timeout=PATIENT_S) == REQUEST
    controller.heartbeat_where()
    assert controller.registrations.empty()


def test_stop_ends_a_registration_that_waits(controller, heartbeats):
    controller.registration = {"error_code": ErrorCode.duplicate_broker_registration}
    ended = threading.Event()

    def run() -> None:
        with pytest.raises(PeerDisconnectedError):
            register(heartbeats)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    controller.registrations.get(timeout=PATIENT_S)
    heartbeats.stop()
    assert ended.wait(PATIENT_S)
    thread.join()
