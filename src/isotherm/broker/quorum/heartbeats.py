"""The thread that registers this broker with the active controller and sends its heartbeats."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.quorum.controller_connection import ControllerConnection
from isotherm.broker.quorum.lifecycle import BrokerState, HeartbeatAnswer, Lifecycle
from isotherm.broker.quorum.registration import reason_to_wait
from isotherm.clock import Clock
from isotherm.errors import (
    BrokerUnreachableError,
    ConfigError,
    LogDirFailedError,
    PeerDisconnectedError,
    PeerTimeoutError,
)
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of

logger = logging.getLogger(__name__)

HEARTBEAT_VERSION = 2


class BrokerHeartbeats:
    """`register` first, then `start`; `stop` last. Every method may be called from any thread."""

    def __init__(
        self,
        broker_id: int,
        connection: ControllerConnection,
        *,
        interval_ms: int,
        metadata_offset: Callable[[], int],
        on_failure: Callable[[Exception], None],
        clock: Clock,
    ) -> None:
        """`metadata_offset` is the highest offset of the metadata log that this broker has taken
        over: the controller waits for it when other brokers stop. `on_failure` gets what ends the
        thread, and directories of which no controller has been notified."""
        self._broker_id = broker_id
        self._connection = connection
        self._interval_ms = interval_ms
        self._metadata_offset = metadata_offset
        self._on_failure = on_failure
        self._clock = clock
        self._lifecycle = Lifecycle(interval_ms)
        self._registration: Any = None
        self._needs_registration = False
        self._offline_deadlines_s: dict[uuid.UUID, float] = {}
        self.broker_epoch = -1
        self.caught_up: Future[None] = Future()
        """Done when the controller says that this broker's metadata has its own registration."""
        self.unfenced: Future[None] = Future()
        self.let_go: Future[None] = Future()
        """Done when the controller says, in a controlled shutdown, that the broker may stop."""
        self._last_error: str | None = None
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="isotherm-broker-heartbeats", daemon=True
        )

    @property
    def state(self) -> BrokerState:
        return self._lifecycle.state if self.broker_epoch >= 0 else BrokerState.NOT_RUNNING

    @property
    def is_fenced(self) -> bool:
        return self._lifecycle.is_fenced

    def register(
        self,
        request: Any,
        *,
        timeout_s: float,
        refusal: Callable[[ErrorCode], ConfigError | None],
    ) -> int:
        """The broker epoch. Tries again until the time has passed; then BrokerUnreachableError with
        the last reason. ConfigError at once for what no retry will help."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        reason = "it was not tried"
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            try:
                response = self._connection.ask(request, timeout_s=left_s)
            except PeerTimeoutError as error:
                reason = str(error)
                continue
            if response.error_code == ErrorCode.none:
                self._registration = request
                self.broker_epoch = int(response.broker_epoch)
                logger.info(
                    "broker is registered broker_id=%d broker_epoch=%d",
                    self._broker_id,
                    self.broker_epoch,
                )
                return self.broker_epoch
            refused = refusal(response.error_code)
            if refused is not None:
                raise refused
            if reason != (reason := reason_to_wait(response.error_code)):
                logger.warning("broker is not registered yet reason='%s'", reason)
            self._clock.wait(self._stopping, self._interval_ms / 1000)
            if self._stopping.is_set():
                raise PeerDisconnectedError("the broker stops: it is not registered")
        raise BrokerUnreachableError(
            "no controller has registered this broker in time"
            f" key=initial.broker.registration.timeout.ms timeout_s={timeout_s:g} reason='{reason}'"
        )

    def start(self) -> None:
        self._thread.start()

    def unfence(self) -> None:
        """The broker can serve: the next heartbeat, at once, asks to be unfenced."""
        with self._guard:
            self._lifecycle.ready_to_unfence()
        self._wake.set()

    def begin_controlled_shutdown(self) -> None:
        """Ask the controller to move this broker's leaderships; `let_go` is done afterwards."""
        with self._guard:
            has_to_wait = self._lifecycle.begin_controlled_shutdown()
        if not has_to_wait:
            _complete(self.let_go)
        self._wake.set()

    def note_offline(self, directory_id: uuid.UUID, timeout_s: float) -> None:
        """Tell the controller of a log directory that failed. It must have heard of it in time:
        `on_failure` gets LogDirFailedError otherwise."""
        with self._guard:
            self._lifecycle.note_offline(directory_id)
            deadline_s = self._clock.monotonic_s() + timeout_s
            self._offline_deadlines_s.setdefault(directory_id, deadline_s)
        self._wake.set()

    def register_again(self) -> None:
        """Send the registration once more: the cluster's metadata lacks the log directories of an
        older one. The epoch stays, and so does being unfenced."""
        with self._guard:
            self._needs_registration = True
        self._wake.set()

    def give_up(self) -> None:
        """End a registration that waits, and heartbeats. Does not wait; `stop` does."""
        self._stopping.set()
        self._wake.set()
        self._connection.close()

    def stop(self) -> None:
        """No heartbeat is sent any more: the controller fences the broker after a while."""
        self.give_up()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            delay_ms = 0
            while self._lifecycle.state is not BrokerState.SHUTTING_DOWN:
                self._clock.wait(self._wake, delay_ms / 1000)
                if self._stopping.is_set():
                    return
                self._wake.clear()
                delay_ms = self._beat()
            # Each further heartbeat would write another record of the fence.
            _complete(self.let_go)
        except PeerDisconnectedError:
            return  # stopped
        # The boundary of the thread: whatever ends it is passed on.
        except Exception as error:
            logger.exception("heartbeats have ended")
            self._on_failure(error)

    def _beat(self) -> int:
        self._check_offline_deadlines()
        with self._guard:
            request = self._registration if self._needs_registration else self._heartbeat()
        timeout_s = self._interval_ms / 1000
        try:
            response = self._connection.ask(request, timeout_s=timeout_s)
        except PeerTimeoutError as error:
            self._note_error(str(error))
            return self._lifecycle.on_failure()
        if response.error_code != ErrorCode.none:
            self._note_error(self._meaning(response.error_code))
            return self._lifecycle.on_failure()
        self._note_error(None)
        with self._guard:
            if request is self._registration:
                self._needs_registration = False
                return 0
            answer = HeartbeatAnswer(
                response.is_caught_up, response.is_fenced, response.should_shut_down
            )
            delay_ms = self._lifecycle.on_answer(answer, request.offline_log_dirs)
        self._complete_futures()
        return delay_ms

    def _heartbeat(self) -> Any:
        wishes = self._lifecycle.wishes()
        return entity_of(
            request_class(ApiKey.BROKER_HEARTBEAT, HEARTBEAT_VERSION),
            {
                "broker_id": self._broker_id,
                "broker_epoch": self.broker_epoch,
                "current_metadata_offset": self._metadata_offset(),
                **wishes._asdict(),
            },
        )

    def _complete_futures(self) -> None:
        state = self._lifecycle.state
        if state is not BrokerState.STARTING:
            _complete(self.caught_up)
        if state is BrokerState.RUNNING:
            _complete(self.unfenced)

    def _check_offline_deadlines(self) -> None:
        with self._guard:
            now_s = self._clock.monotonic_s()
            for directory_id, deadline_s in list(self._offline_deadlines_s.items()):
                if self._lifecycle.controller_knows_offline(directory_id):
                    del self._offline_deadlines_s[directory_id]
                elif now_s >= deadline_s:
                    raise LogDirFailedError(
                        "no controller could be told of a log directory that failed"
                        f" directory_id={directory_id} key=log.dir.failure.timeout.ms"
                    )

    def _meaning(self, error: ErrorCode) -> str:
        if error == ErrorCode.stale_broker_epoch:
            return (
                "another process has registered with this node.id, or the broker was unregistered:"
                f" restart it broker_id={self._broker_id} broker_epoch={self.broker_epoch}"
            )
        return error.name

    def _note_error(self, reason: str | None) -> None:
        """One line per change: heartbeats are many."""
        if reason is not None and reason != self._last_error:
            logger.warning("heartbeat is not accepted reason='%s'", reason)
        elif reason is None and self._last_error is not None:
            logger.info("heartbeats are accepted again broker_id=%d", self._broker_id)
        self._last_error = reason


def _complete(future: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):  # it was done before
        future.set_result(None)
