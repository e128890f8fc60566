"""Producer ids of a member, from blocks that the active controller allocates to this broker.

The next block is requested when 90 % of the current one are used. While no block is there, clients
retry.
Source: Kafka RPCProducerIdManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.quorum.controller_channel import Send
from isotherm.clock import Clock
from isotherm.errors import CoordinatorLoadInProgressError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.remote.outages import Outage
from isotherm.types import ProducerId

logger = logging.getLogger(__name__)

PREFETCH_SHARE = 0.9  # Kafka: RPCProducerIdManager.PID_PREFETCH_THRESHOLD
RETRY_BACKOFF_S = 0.05  # Kafka: RPCProducerIdManager.RETRY_BACKOFF_MS
REQUEST_TIMEOUT_S = 60.0

_VERSION = 0


class ProducerIdBlocks:
    """Thread-safe."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Send,
        clock: Clock,
    ) -> None:
        """`send` is `ControllerChannel.send`."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._clock = clock
        self._outage = Outage(
            logger,
            clock,
            failing="no block of producer ids is allocated yet",
            working="a block of producer ids is allocated",
        )
        self._current = range(0)
        self._next: range | None = None
        self._prefetch_from = 0
        self._is_asking = False
        self._not_before_s = 0.0
        # Reentrant: if the channel refuses at once, `_on_answer` runs within `_ask`.
        self._guard = threading.RLock()

    def generate(self) -> ProducerId:
        """A producer id that is unique in the cluster.

        Raises CoordinatorLoadInProgressError while there is no block; the client then retries.
        """
        with self._guard:
            if not self._current and self._next is not None:
                self._take(self._next)
            if not self._current:
                self._ask()
            if not self._current:
                raise CoordinatorLoadInProgressError("no block of producer ids is allocated yet")
            producer_id = self._current[0]
            self._current = self._current[1:]
            if producer_id >= self._prefetch_from:
                self._ask()
            return producer_id

    def _take(self, block: range) -> None:
        self._current, self._next = block, None
        self._prefetch_from = block.start + int(len(block) * PREFETCH_SHARE)

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._is_asking or self._next is not None or now_s < self._not_before_s:
            return
        self._is_asking = True
        request = entity_of(
            request_class(ApiKey.ALLOCATE_PRODUCER_IDS, _VERSION),
            {"broker_id": self._broker_id, "broker_epoch": self._broker_epoch()},
        )
        self._send(request, timeout_s=REQUEST_TIMEOUT_S).add_done_callback(self._on_answer)

    def _on_answer(self, answer: Future[Any]) -> None:
        failure = answer.exception()
        response = None if failure is not None else answer.result()
        with self._guard:
            self._is_asking = False
            if response is not None and response.error_code == ErrorCode.none:
                self._outage.worked()
                start, count = int(response.producer_id_start), int(response.producer_id_len)
                block = range(start, start + count)
                if self._current:
                    self._next = block
                else:
                    self._take(block)
                return
            self._not_before_s = self._clock.monotonic_s() + RETRY_BACKOFF_S
        reason = str(failure) if response is None else code_name(response.error_code)
        self._outage.failed(reason)
