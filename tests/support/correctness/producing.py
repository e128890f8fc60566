"""Workers that write outside transactions, and the outcome of each record."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from isotherm.types import TopicPartition
from tests.support.correctness.history import Kind, Operation, Outcome, Send, Value
from tests.support.correctness.workload import (
    BATCH_SIZE,
    EVENTS,
    REFUSED_VALUE_SIZE,
    REQUEST_TIMEOUT_S,
    VALUE_SIZE,
    Workload,
    encode_value,
)

MESSAGE_TIMEOUT_MS = 10_000
SENDS_PER_OPERATION_MAX = 40
OPERATIONS_PER_LIFE_MAX = 200

# Errors that mean that the whole batch was refused, at this attempt and every earlier one.
_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})

# Errors after which the client accepts no records. Abort its transaction, or replace it.
_NOT_ACCEPTED = frozenset({KafkaError._STATE, KafkaError._FATAL})


@dataclass(slots=True)
class Attempt:
    """A record in flight. librdkafka's callback sets its outcome."""

    partition: TopicPartition
    value: Value
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    error: str = ""
    code: int = KafkaError.NO_ERROR

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.outcome = Outcome.OK
            # The acknowledgement of a duplicate batch may have no offset.
            offset = message.offset()
            self.offset = offset if offset is not None and offset >= 0 else None
        else:
            self.outcome = Outcome.FAIL if error.code() in _REFUSED else Outcome.UNKNOWN
            self.error, self.code = error.name(), error.code()

    def as_send(self) -> Send:
        return Send(self.partition, self.value, self.offset)


def send(producer: Producer, attempt: Attempt, size: int = VALUE_SIZE) -> None:
    """Pass one record to the client, which sends it later."""
    try:
        producer.produce(
            attempt.partition.topic,
            encode_value(attempt.value, size),
            partition=attempt.partition.partition,
            on_delivery=attempt.on_delivery,
        )
    except BufferError:
        attempt.outcome, attempt.error = Outcome.FAIL, "queue full"
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        if error.code() not in _NOT_ACCEPTED:
            raise
        attempt.outcome, attempt.error = Outcome.FAIL, error.name()
        attempt.code = error.code()


# After a fatal error of its producer, calls that serve the client's callbacks raise these. It is
# SystemError if a delivery callback ran while the exception was already set.
FATAL_ERRORS = (KafkaException, SystemError)


def fatal_error(raised: BaseException) -> KafkaError:
    return raised.args[0] if isinstance(raised, KafkaException) else KafkaError(KafkaError._FATAL)


def flush(producer: Producer, timeout_s: float) -> KafkaError | None:
    """Flush, and return the fatal error that ended it, or None. The outcome of records that are not
    delivered by then stays unknown."""
    try:
        producer.flush(timeout_s)
    except FATAL_ERRORS as raised:
        return fatal_error(raised)
    return None


def run_producer(
    workload: Workload, rng: random.Random, topic: str = EVENTS, *, idempotent: bool
) -> None:
    """Write batches of records. A batch is one operation, or one for each outcome of its records.

    Without idempotence there are no retries, so that a duplicate is the broker's fault too. With
    idempotence only one request is in flight: with several, librdkafka reacts to an error by a
    higher producer epoch, and sends records again that may be in another partition already (its
    issue 4953). Transactional producers have several in flight, because they abort.
    """
    settings = (
        {"enable.idempotence": True, "max.in.flight": 1}
        if idempotent
        else {"acks": "all", "message.send.max.retries": 0}
    )
    while not workload.stopping.is_set():
        process = workload.history.new_process()
        producer = Producer(
            workload.client_config(
                linger_ms=2, batch_size=BATCH_SIZE, message_timeout_ms=MESSAGE_TIMEOUT_MS
            )
            | settings
            | {"compression.type": rng.choice(["none", "lz4", "zstd"])}
        )
        for _ in range(rng.randrange(1, OPERATIONS_PER_LIFE_MAX)):
            if workload.clock.wait(workload.stopping, workload.pause_s):
                break
            if KafkaError._FATAL in _send_batch(workload, rng, producer, process, topic):
                break


def _send_batch(
    workload: Workload, rng: random.Random, producer: Producer, process: int, topic: str
) -> set[int]:
    """Write one batch. Returns the error codes of its records."""
    invoked_s = workload.clock.monotonic_s()
    attempts = [
        Attempt(workload.any_partition(topic, rng), workload.new_value())
        for _ in range(rng.randrange(1, SENDS_PER_OPERATION_MAX))
    ]
    for attempt in attempts:
        refused = rng.random() < 0.002
        send(producer, attempt, REFUSED_VALUE_SIZE if refused else VALUE_SIZE)
    fatal = flush(producer, MESSAGE_TIMEOUT_MS / 1000 + REQUEST_TIMEOUT_S)
    by_outcome: defaultdict[Outcome, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_outcome[attempt.outcome].append(attempt)
    for outcome, group in by_outcome.items():
        workload.history.add(
            Operation(
                process,
                Kind.SEND,
                outcome,
                tuple(attempt.as_send() for attempt in group),
                invoked_s=invoked_s,
                completed_s=workload.clock.monotonic_s(),
                error=group[0].error,
            )
        )
    return {attempt.code for attempt in attempts} | ({KafkaError._FATAL} if fatal else set())
