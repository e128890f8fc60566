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

from isotherm.broker.metadata.quorum.broker_lifecycle import BrokerState, HeartbeatAnswer, Lifecycle
from isotherm.broker.metadata.quorum.controller_connection import ControllerConnection
from isotherm.broker.metadata.quorum.registration import reason_to_wait, refusal
from isotherm.broker.threads.step_thread import StepThread
from isotherm.clock import Clock
from isotherm.errors import (
    BrokerUnreachableError,
    LogDirFailedError,
    PeerDisconnectedError,
    PeerTimeoutError,
    RejectedError,
)
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.remote.outages import Outage

logger = logging.getLogger(__name__)

HEARTBEAT_VERSION = 2


class BrokerHeartbeats:
    """Call `register` first, then `start`, and `stop` last. Methods may be called on any thread."""

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
        """`metadata_offset` returns the highest offset of the metadata log that this broker has
        applied. The controller waits for it when other brokers stop. `on_failure` gets the error
        that ends the thread, such as a failed directory that could not be reported in time."""
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
        """Done when the controller confirms that this broker's metadata has the broker's own
        registration.
        """
        self.unfenced: Future[None] = Future()
        self.let_go: Future[None] = Future()
        """Done when the controller confirms, in a controlled shutdown, that the broker may stop."""
        self._outage = Outage(
            logger,
            clock,
            failing=f"heartbeat is not accepted broker_id={broker_id}",
            working=f"heartbeats are accepted again broker_id={broker_id}",
        )
        self._guard = threading.Lock()
        self._thread = StepThread("isotherm-broker-heartbeats", self._step, clock)

    @property
    def state(self) -> BrokerState:
        return self._lifecycle.state if self.broker_epoch >= 0 else BrokerState.NOT_RUNNING

    @property
    def is_fenced(self) -> bool:
        return self._lifecycle.is_fenced

    def register(self, request: Any, *, timeout_s: float) -> int:
        """Register with the active controller; returns the broker epoch.

        Retries until `timeout_s` has passed, then raises BrokerUnreachableError with the last
        reason. Raises ConfigError at once if a retry cannot help, and
        PeerDisconnectedError at a stop.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        reason = "not attempted"
        outage = Outage(logger, self._clock, failing="broker is not registered yet", working="")
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            try:
                # Each attempt has the same incarnation id, so a controller whose answer
                # was lost sees no duplicate.
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
            refused = refusal(response.error_code, request)
            if refused is not None:
                raise refused
            reason = reason_to_wait(response.error_code)
            outage.failed(reason)
            if self._thread.pause(self._interval_ms / 1000):
                raise PeerDisconnectedError("the broker stops: it is not registered")
        raise BrokerUnreachableError(
            "no controller has registered this broker in time"
            f" key=initial.broker.registration.timeout.ms timeout_s={timeout_s:g} reason='{reason}'"
        )

    def start(self) -> None:
        self._thread.start()

    def unfence(self) -> None:
        """Ask to be unfenced with a heartbeat now: the broker can serve."""
        with self._guard:
            self._lifecycle.ready_to_unfence()
        self._thread.wake()

    def begin_controlled_shutdown(self) -> None:
        """Ask the controller to move this broker's leaderships away.

        `let_go` is done afterwards.
        """
        with self._guard:
            has_to_wait = self._lifecycle.begin_controlled_shutdown()
        if not has_to_wait:
            _complete(self.let_go)
        self._thread.wake()

    def note_offline(self, directory_id: uuid.UUID, timeout_s: float) -> None:
        """Report a failed log directory to the controller. `on_failure` gets LogDirFailedError if
        no heartbeat with it is answered within `timeout_s`."""
        with self._guard:
            self._lifecycle.note_offline(directory_id)
            deadline_s = self._clock.monotonic_s() + timeout_s
            # The first report of a directory sets its deadline; later ones do not extend it.
            self._offline_deadlines_s.setdefault(directory_id, deadline_s)
        self._thread.wake()

    def register_again(self) -> None:
        """Send the registration once more, because the metadata lacks this broker's log
        directories. The broker epoch and the fencing state stay."""
        with self._guard:
            self._needs_registration = True
        self._thread.wake()

    def give_up(self) -> None:
        """Abort a registration and the heartbeats without waiting for the thread. `stop` waits."""
        self._thread.begin_stop()
        self._connection.close()

    def stop(self) -> None:
        """End the thread. The controller fences the broker after broker.session.timeout.ms."""
        self.give_up()
        self._thread.join()

    def _step(self) -> float | None:
        try:
            delay_ms = self._beat()
        except PeerDisconnectedError:
            return None  # stopped
        # The boundary of the thread: `on_failure` gets any error that ends it.
        except Exception as error:
            logger.exception("heartbeats have ended")
            self._on_failure(error)
            return None
        if self._lifecycle.state is BrokerState.SHUTTING_DOWN:
            # No heartbeat after this: each would make the controller write another record of the
            # fence.
            _complete(self.let_go)
            return None
        return delay_ms / 1000

    def _beat(self) -> int:
        self._check_offline_deadlines()
        with self._guard:
            request = self._registration if self._needs_registration else self._heartbeat()
        timeout_s = self._interval_ms / 1000
        # The lock is not held during the request, so that no caller of another method waits for the
        # controller.
        try:
            response = self._connection.ask(request, timeout_s=timeout_s)
        except PeerTimeoutError as error:
            self._outage.failed(error)
            return self._lifecycle.on_failure()
        if response.error_code != ErrorCode.none:
            self._outage.failed(self._refused(response.error_code))
            return self._lifecycle.on_failure()
        self._outage.worked()
        with self._guard:
            # A heartbeat at once: this answer was not one, so the state of the lifecycle is as
            # before.
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
                        "no controller has accepted the report of a failed log directory"
                        f" directory_id={directory_id} key=log.dir.failure.timeout.ms"
                    )

    def _refused(self, error: ErrorCode) -> Exception | str:
        if error == ErrorCode.stale_broker_epoch:
            return RejectedError(
                "another process has registered with this node.id, or the broker was unregistered:"
                f" restart it broker_id={self._broker_id} broker_epoch={self.broker_epoch}"
            )
        return code_name(error)


def _complete(future: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):  # it was done before
        future.set_result(None)
