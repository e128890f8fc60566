"""States and intervals of Kafka's BrokerLifecycleManager."""

from __future__ import annotations

import uuid

import pytest

from isotherm.broker.metadata.quorum.broker_lifecycle import BrokerState, HeartbeatAnswer, Lifecycle

INTERVAL_MS = 2000
DIRECTORY = uuid.UUID(int=1 << 100)
BEHIND = HeartbeatAnswer(is_caught_up=False, is_fenced=True, should_shut_down=False)
FENCED = HeartbeatAnswer(is_caught_up=True, is_fenced=True, should_shut_down=False)
RUNS = HeartbeatAnswer(is_caught_up=True, is_fenced=False, should_shut_down=False)
GO = HeartbeatAnswer(is_caught_up=True, is_fenced=True, should_shut_down=True)


def in_state(state: BrokerState) -> Lifecycle:
    lifecycle = Lifecycle(INTERVAL_MS)
    if state is not BrokerState.STARTING:
        lifecycle.on_answer(FENCED, ())
    if state in (BrokerState.RUNNING, BrokerState.PENDING_CONTROLLED_SHUTDOWN):
        lifecycle.ready_to_unfence()
        lifecycle.on_answer(RUNS, ())
    if state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        lifecycle.begin_controlled_shutdown()
    assert lifecycle.state is state
    return lifecycle


@pytest.mark.parametrize(
    ("state", "answer", "next_state", "delay_ms"),
    [
        (BrokerState.STARTING, BEHIND, BrokerState.STARTING, 10),
        (BrokerState.STARTING, FENCED, BrokerState.RECOVERY, 10),
        (BrokerState.RECOVERY, FENCED, BrokerState.RECOVERY, INTERVAL_MS),
        (BrokerState.RECOVERY, RUNS, BrokerState.RUNNING, INTERVAL_MS),
        (BrokerState.RUNNING, RUNS, BrokerState.RUNNING, INTERVAL_MS),
        # Fenced while it runs: it keeps sending heartbeats, and the controller unfences it.
        (BrokerState.RUNNING, FENCED, BrokerState.RUNNING, INTERVAL_MS),
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, RUNS,
         BrokerState.PENDING_CONTROLLED_SHUTDOWN, 50),
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, GO, BrokerState.SHUTTING_DOWN, INTERVAL_MS),
    ],
)  # fmt: skip
def test_answer_moves_the_state(state, answer, next_state, delay_ms):
    lifecycle = in_state(state)
    assert lifecycle.on_answer(answer, ()) == delay_ms
    assert lifecycle.state is next_state
    assert lifecycle.is_fenced is answer.is_fenced


def test_only_the_first_answer_to_a_shutdown_hurries():
    lifecycle = in_state(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
    delays = [lifecycle.on_answer(RUNS, ()) for _ in range(3)]
    assert delays == [50, INTERVAL_MS, INTERVAL_MS]


def test_wishes_follow_the_state():
    lifecycle = Lifecycle(INTERVAL_MS)
    assert lifecycle.wishes() == (True, False, (), None)
    lifecycle.on_answer(FENCED, ())
    assert lifecycle.wishes() == (True, False, (), ())
    lifecycle.ready_to_unfence()
    assert lifecycle.wishes() == (False, False, (), ())
    lifecycle.on_answer(RUNS, ())
    assert lifecycle.begin_controlled_shutdown()
    assert lifecycle.wishes() == (False, True, (), ())


@pytest.mark.parametrize("state", [BrokerState.STARTING, BrokerState.RECOVERY])
def test_broker_that_does_not_run_stops_without_waiting(state):
    lifecycle = in_state(state)
    assert not lifecycle.begin_controlled_shutdown()
    assert lifecycle.state is BrokerState.SHUTTING_DOWN


def test_second_request_to_stop_changes_nothing():
    lifecycle = in_state(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
    assert lifecycle.begin_controlled_shutdown()
    assert lifecycle.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN


def test_failed_directory_is_in_every_heartbeat_and_known_once_answered():
    lifecycle = in_state(BrokerState.RUNNING)
    lifecycle.note_offline(DIRECTORY)
    offline = lifecycle.wishes().offline_log_dirs
    assert offline == (DIRECTORY,)
    assert not lifecycle.controller_knows_offline(DIRECTORY)
    assert lifecycle.on_failure() == INTERVAL_MS
    assert not lifecycle.controller_knows_offline(DIRECTORY)
    lifecycle.on_answer(RUNS, offline)
    assert lifecycle.controller_knows_offline(DIRECTORY)
    assert lifecycle.wishes().offline_log_dirs == (DIRECTORY,)
