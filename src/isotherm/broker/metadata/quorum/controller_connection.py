"""Sends requests to the active controller, and follows it when it changes.

A former active controller answers NOT_CONTROLLER, and a dead one does not answer. In both cases the
connection is dropped, and the request is sent again to the leader that the observer knows by then.
Source: Kafka NodeToControllerRequestThread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.quorum.controller_discovery import QuorumLeader
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection, served_versions
from isotherm.clock import Clock
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.api_keys import VersionRange, api_name

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S = 0.1  # Kafka: NodeToControllerRequestThread.doWork


class ControllerVersions:
    """The API versions that the active controller serves. They limit the versions of forwarded
    requests that clients may use. Source: Kafka ForwardingManager.controllerApiVersions.

    Learned on the first connection for forwarding, and on each later one: the controller may
    differ.
    """

    def __init__(self) -> None:
        self.served: Mapping[int, VersionRange] | None = None
        """Version ranges by API key; None before the first connection. `learn` replaces the
        mapping, so any thread may read it."""

    def learn(self, connection: NodeConnection) -> None:
        """Request the versions. Raises what `NodeConnection.send` raises."""
        self.served = served_versions(connection)


class ControllerConnection:
    """One thread at a time may call `ask`; any thread may call `close`."""

    def __init__(
        self,
        leader: Callable[[], QuorumLeader],
        connect: Callable[[NodeAddress], NodeConnection],
        clock: Clock,
        greet: Callable[[NodeConnection], None] | None = None,
    ) -> None:
        """`leader` returns the leader that the observer knows. `connect` makes a connection that
        opens on its first use. `greet` runs once per connection, before its first request, and
        raises what `NodeConnection.send` raises."""
        self._leader = leader
        self._connect = connect
        self._clock = clock
        self._greet = greet
        self._is_greeted = False
        self._connection: NodeConnection | None = None
        self._closing = threading.Event()
        self._guard = threading.Lock()

    def ask(self, request: Any, *, timeout_s: float) -> Any:
        """The active controller's response. An unanswered request is sent again, so the controller
        may receive it twice.

        Raises PeerTimeoutError when `timeout_s` has passed, and PeerDisconnectedError once closed.
        The deadline is checked between attempts; the connection's own timeout bounds an attempt.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        reason = "the active controller is not known"
        while not self._closing.is_set():
            address = self._leader().address
            if address is not None:
                connection = self._connected_to(address)
                try:
                    self._greet_once(connection)
                    response = connection.send(request)
                except (PeerDisconnectedError, PeerTimeoutError) as error:
                    reason = str(error)
                else:
                    if getattr(response, "error_code", None) != ErrorCode.not_controller:
                        return response
                    reason = f"controller is not active address={address}"
                self._drop()
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise PeerTimeoutError(
                    f"no active controller answers api={api_name(type(request).__api_key__)}"
                    f" timeout_s={timeout_s:g} reason='{reason}'"
                )
            self._clock.wait(self._closing, min(left_s, RETRY_INTERVAL_S))
        raise PeerDisconnectedError("the broker has closed the connection to the controller")

    def close(self) -> None:
        with self._guard:
            self._closing.set()
            if self._connection is not None:
                self._connection.close()

    def _greet_once(self, connection: NodeConnection) -> None:
        if self._greet is not None and not self._is_greeted:
            self._greet(connection)
            self._is_greeted = True

    def _connected_to(self, address: NodeAddress) -> NodeConnection:
        with self._guard:
            if self._connection is None or self._connection.address != address:
                if self._connection is not None:
                    self._connection.close()
                self._connection, self._is_greeted = self._connect(address), False
                # `close` came first: it has closed the connection before, not this one.
                if self._closing.is_set():
                    self._connection.close()
            return self._connection

    def _drop(self) -> None:
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
