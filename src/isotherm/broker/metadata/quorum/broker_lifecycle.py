"""The state of a broker in its cluster: the content of heartbeats, and the effects of answers.
Pure.

    STARTING -> (its metadata has its own registration) RECOVERY -> (unfenced) RUNNING
    -> PENDING_CONTROLLED_SHUTDOWN -> (the controller lets it stop) SHUTTING_DOWN

Source: KIP-631; Kafka BrokerLifecycleManager.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable
from typing import NamedTuple

# Kafka: BrokerLifecycleManager. A broker without recovery work starts sooner.
STARTING_INTERVAL_MS = 10
FIRST_SHUTDOWN_INTERVAL_MS = 50


class BrokerState(enum.IntEnum):
    """The numbers are those of Kafka's metric BrokerState."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class HeartbeatWishes(NamedTuple):
    """The broker's part of a heartbeat. `cordoned_log_dirs` None leaves the controller's state as
    it is, since a broker that has not caught up does not know its own."""

    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: tuple[uuid.UUID, ...]
    cordoned_log_dirs: tuple[uuid.UUID, ...] | None


class HeartbeatAnswer(NamedTuple):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class Lifecycle:
    """Not thread-safe; `BrokerHeartbeats` calls it under its lock."""

    def __init__(self, interval_ms: int) -> None:
        self.state = BrokerState.STARTING
        self.is_fenced = True
        """Whether the broker is fenced, according to the controller's last answer."""
        self._interval_ms = interval_ms
        self._is_ready = False
        self._offline_log_dirs: dict[uuid.UUID, bool] = {}
        self._has_shutdown_answer = False

    def wishes(self) -> HeartbeatWishes:
        return HeartbeatWishes(
            not self._is_ready,
            self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            tuple(self._offline_log_dirs),
            None if self.state is BrokerState.STARTING else (),
        )

    def ready_to_unfence(self) -> None:
        self._is_ready = True

    def note_offline(self, directory_id: uuid.UUID) -> None:
        self._offline_log_dirs.setdefault(directory_id, False)

    def controller_knows_offline(self, directory_id: uuid.UUID) -> bool:
        return self._offline_log_dirs.get(directory_id, False)

    def begin_controlled_shutdown(self) -> bool:
        """Returns whether the controller has to be waited for. A broker that is not RUNNING leads
        nothing, so it may stop at once."""
        if self.state is BrokerState.RUNNING:
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.state = BrokerState.SHUTTING_DOWN
        return self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN

    def on_answer(self, answer: HeartbeatAnswer, reported_offline: Iterable[uuid.UUID]) -> int:
        """Apply an answer; returns the milliseconds until the next heartbeat. `reported_offline`
        are the failed directories in the answered heartbeat."""
        self._offline_log_dirs.update(dict.fromkeys(reported_offline, True))
        self.is_fenced = answer.is_fenced
        if self.state is BrokerState.STARTING:
            if answer.is_caught_up:
                self.state = BrokerState.RECOVERY
            return STARTING_INTERVAL_MS
        if self.state is BrokerState.RECOVERY and not answer.is_fenced:
            self.state = BrokerState.RUNNING
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            is_first, self._has_shutdown_answer = not self._has_shutdown_answer, True
            if answer.should_shut_down:
                self.state = BrokerState.SHUTTING_DOWN
            elif is_first:
                # As in Kafka: a controlled shutdown that completes quickly is noticed sooner.
                return FIRST_SHUTDOWN_INTERVAL_MS
        return self._interval_ms

    def on_failure(self) -> int:
        """The milliseconds until the next heartbeat after an error or no answer."""
        return self._interval_ms
