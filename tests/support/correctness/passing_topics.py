"""A worker that creates, writes to and deletes topics. Nothing of them may stay in the bucket."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.correctness.workload import (
    PATIENCE_S,
    REQUEST_TIMEOUT_S,
    Workload,
    encode_value,
)

# There are few names, so that a new topic often has the name of one whose deletion is in progress.
NAMES = ("passing-0", "passing-1")
RECORDS_MAX = 600
LIFE_S_MAX = 3.0
_PAUSE_S = 0.1


def run_passing_topics(workload: Workload, rng: random.Random, config: Mapping[str, str]) -> None:
    admin = AdminClient(workload.client_config())
    while not workload.stopping.is_set():
        name = rng.choice(NAMES)
        _insist(
            workload,
            lambda: admin.create_topics([NewTopic(name, 1, 1, config=dict(config))]),  # noqa: B023
            KafkaError.TOPIC_ALREADY_EXISTS,
        )
        _fill(workload, rng, name)
        workload.clock.wait(workload.stopping, rng.uniform(0, LIFE_S_MAX))
        _delete(workload, admin, name)
    for name in NAMES:
        _delete(workload, admin, name)


def _fill(workload: Workload, rng: random.Random, name: str) -> None:
    producer = Producer(workload.client_config(linger_ms=2, message_timeout_ms=3_000))
    for _ in range(rng.randrange(RECORDS_MAX)):
        producer.produce(name, encode_value(workload.new_value()), partition=0)
    producer.flush(REQUEST_TIMEOUT_S)


def _delete(workload: Workload, admin: AdminClient, name: str) -> None:
    _insist(workload, lambda: admin.delete_topics([name]), KafkaError.UNKNOWN_TOPIC_OR_PART)


def _insist(
    workload: Workload, request: Callable[[], Mapping[str, Future[None]]], done_already: int
) -> None:
    """Repeat a call until it succeeds, because the broker restarts. Raises the last error after the
    time limit."""
    deadline_s = workload.clock.monotonic_s() + PATIENCE_S
    while True:
        try:
            for future in request().values():
                future.result(REQUEST_TIMEOUT_S)
        except TimeoutError:
            if workload.clock.monotonic_s() > deadline_s:
                raise
        except KafkaException as raised:
            if raised.args[0].code() == done_already:
                return
            if workload.clock.monotonic_s() > deadline_s:
                raise
            # `stopping` does not end this wait: at the end of a round the topics must still be
            # deleted.
            workload.clock.wait(threading.Event(), _PAUSE_S)
        else:
            return
