"""A producer that records the times of acknowledgements, and the longest gap between them.

It sends a record every few milliseconds with acks=all, independent of the brokers. It retries and
looks for the new leader as often as it can, so that the brokers dominate the longest gap.
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

INTERVAL_S = 0.005
RETRY_MS = 5
TIMEOUT_S = 120
VALUE = bytes(100)


class AckGaps:
    """Sends to partition 0 on its own thread while the `with` block runs."""

    def __init__(self, bootstrap_server: str, topic: str) -> None:
        self._topic = topic
        self._acked_s = array("d")
        self._errors: list[KafkaError] = []
        self._ending = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_server,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": TIMEOUT_S * 1000,
                "socket.timeout.ms": 10_000,
                "retry.backoff.ms": RETRY_MS,
                "retry.backoff.max.ms": RETRY_MS,
                "reconnect.backoff.ms": RETRY_MS,
                "reconnect.backoff.max.ms": RETRY_MS * 10,
                "topic.metadata.refresh.fast.interval.ms": RETRY_MS,
                # Errors of killed brokers are expected.
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join()
        if error is None and (self._producer.flush(TIMEOUT_S) or self._errors):
            raise RuntimeError(f"records were not acknowledged: errors={self._errors[:3]}")

    def await_ack_after(self, moment_s: float) -> None:
        """Return once a record was acknowledged after `moment_s` of the monotonic clock."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self._acked_s or self._acked_s[-1] <= moment_s:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no record was acknowledged for {TIMEOUT_S} s")
            time.sleep(INTERVAL_S)

    def longest_s(self, since_s: float) -> float:
        """The longest gap between acknowledgements that ended after `since_s`."""
        times = self._acked_s[:]
        gaps = itertools.pairwise(times)
        return max(after - before for before, after in gaps if after > since_s)

    def _send(self) -> None:
        next_s = time.monotonic()
        while not self._ending.is_set():
            self._producer.produce(self._topic, VALUE, partition=0, on_delivery=self._delivered)
            next_s += INTERVAL_S
            while (left_s := next_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(error)
        else:
            self._acked_s.append(time.monotonic())
