"""Workers that write outside transactions, and the outcome of each record."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from isotherm.testing.correctness.history import Kind, Operation, Outcome, Send, Value
from isotherm.testing.correctness.workload import (
    BATCH_SIZE,
    EVENTS,
    REFUSED_VALUE_SIZE,
    REQUEST_TIMEOUT_S,
    VALUE_SIZE,
    Workload,
    encode_value,
)
from isotherm.types import TopicPartition

MESSAGE_TIMEOUT_MS = 10_000
SENDS_PER_OPERATION_MAX = 40
OPERATIONS_PER_LIFE_MAX = 200

# The whole batch was refused, now and at any earlier attempt.
_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})

# The client accepts no more records: abort its transaction, or replace it.
_NOT_ACCEPTED = frozenset({KafkaError._STATE, KafkaError._FATAL})


@dataclass(slots=True)
class Attempt:
    """One record in flight; librdkafka's callbacks set its outcome."""

    partition: TopicPartition
    value: Value
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    error: str = ""
    code: int = KafkaError.NO_ERROR

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.outcome = Outcome.OK
            # The acknowledgement of a duplicate batch may lack its offset.
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


# What comes out of a call that serves the client's callbacks once its producer has met a fatal
# error: SystemError where a delivery callback ran with the exception already set.
FATAL_ERRORS = (KafkaException, SystemError)


def fatal_error(raised: BaseException) -> KafkaError:
    return raised.args[0] if isinstance(raised, KafkaException) else KafkaError(KafkaError._FATAL)


def flush(producer: Producer, timeout_s: float) -> KafkaError | None:
    """The fatal error that ended it, if one did; what was not delivered by then stays unknown."""
    try:
        producer.flush(timeout_s)
    except FATAL_ERRORS as raised:
        return fatal_error(raised)
    return None


def run_producer(
    workload: Workload, rng: random.Random, topic: str = EVENTS, *, idempotent: bool
) -> None:
    """Batches of records, each batch an operation (or one for each outcome in it).

    Without idempotence nothing is sent twice, so that a duplicate is the broker's fault too. With it one
    request is in flight: librdkafka answers an error of one among several by a higher producer epoch,
    under which it sends again what may be in another partition already (its issue 4953). Transactional
    producers have several in flight; they abort.
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
    """The codes of the errors that records met."""
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
