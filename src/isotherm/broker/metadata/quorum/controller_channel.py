"""A queue of requests to the active controller. Its own thread sends them one after the other."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from isotherm.broker.metadata.quorum.controller_connection import ControllerConnection
from isotherm.broker.threads.step_thread import UNTIL_WOKEN_S, StepThread
from isotherm.clock import Clock
from isotherm.errors import NotEnoughMemoryError, PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.api_keys import api_name


class Send(Protocol):
    """`ControllerChannel.send`."""

    def __call__(self, request: Any, *, timeout_s: float) -> Future[Any]: ...


class _Waiting(NamedTuple):
    request: Any
    deadline_s: float
    answer: Future[Any]


class ControllerChannel:
    """`send` may be called from any thread. `stop` returns after the last future is done."""

    def __init__(
        self, name: str, connection: ControllerConnection, clock: Clock, *, requests_max: int
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._requests_max = requests_max
        self._queue: deque[_Waiting] = deque()
        self._is_stopped = False
        self._guard = threading.Lock()
        self._thread = StepThread(
            f"isotherm-{name}", self._answer_next, clock, first_delay_s=UNTIL_WOKEN_S
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, request: Any, *, timeout_s: float) -> Future[Any]:
        """Queue a request; returns a future of the response.

        The future fails with PeerTimeoutError when `timeout_s` has passed, which includes the time
        in the queue and during a change of the controller; with NotEnoughMemoryError if too many
        requests wait; and with PeerDisconnectedError once the channel is stopped.
        """
        answer: Future[Any] = Future()
        waiting = _Waiting(request, self._clock.monotonic_s() + timeout_s, answer)
        with self._guard:
            if self._is_stopped:
                answer.set_exception(_stopped())
            elif len(self._queue) >= self._requests_max:
                answer.set_exception(
                    NotEnoughMemoryError(
                        "too many requests wait for the controller"
                        f" key=controller.requests.max value={self._requests_max}"
                    )
                )
            else:
                self._queue.append(waiting)
                self._thread.wake()
        return answer

    def stop(self) -> None:
        """End the thread. Requests in the queue and in flight fail with PeerDisconnectedError."""
        with self._guard:
            self._is_stopped = True
        self._thread.begin_stop()
        # Before the join: the close ends the request in flight.
        self._connection.close()
        self._thread.join()
        while self._queue:
            answer = self._queue.popleft().answer
            # A request whose client has disconnected was cancelled while it waited.
            if answer.set_running_or_notify_cancel():
                answer.set_exception(_stopped())

    def _answer_next(self) -> float:
        with self._guard:
            if not self._queue:
                return UNTIL_WOKEN_S
            request, deadline_s, answer = self._queue.popleft()
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(self._answered(request, deadline_s))
            # The boundary of the thread: the future passes every error on.
            except Exception as error:  # noqa: BLE001
                answer.set_exception(error)
        return 0

    def _answered(self, request: Any, deadline_s: float) -> Any:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise PeerTimeoutError(
                "a request has waited too long for the controller"
                f" api={api_name(type(request).__api_key__)}"
            )
        return self._connection.ask(request, timeout_s=left_s)


def _stopped() -> PeerDisconnectedError:
    return PeerDisconnectedError("the broker stops: no request is sent to the controller")
