"""Workers that write and read in transactions.

Errors of librdkafka while a broker is down are in the report, but are not anomalies. They also
occur with Apache Kafka (tests/oracle/test_coordinator_histories.py):

    INVALID_TXN_STATE  an abort after the partitions could not be registered: no transaction is open
    _FENCED            the transaction timed out: the coordinator has aborted it under a new epoch
    _TIMED_OUT         offsets could not be sent within the transaction's timeout
    _INCONSISTENT      records could not be delivered within that timeout
"""

from __future__ import annotations

import random
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.types import TopicPartition
from tests.support.correctness.consuming import AssignedReader
from tests.support.correctness.history import (
    Isolation,
    Kind,
    Operation,
    Outcome,
    Poll,
    Value,
)
from tests.support.correctness.producing import (
    FATAL_ERRORS,
    MESSAGE_TIMEOUT_MS,
    Attempt,
    fatal_error,
    flush,
    send,
)
from tests.support.correctness.workload import (
    BATCH_SIZE,
    EVENTS,
    PATIENCE_S,
    REQUEST_TIMEOUT_S,
    Workload,
)

IDLE_MS_MAX = 5_000
TRANSACTION_TIMEOUT_MS = 5_000
STEPS_MAX = 4
RECORDS_PER_STEP_MAX = 10
TRANSACTIONS_PER_LIFE_MAX = 60


class Transaction:
    """One transaction of a producer, from its start to its outcome, which may stay unknown."""

    def __init__(self, workload: Workload, producer: Producer) -> None:
        self._workload = workload
        self.producer = producer
        self.commit_invoked_s: float | None = None
        self.error = ""
        producer.begin_transaction()

    def send(self, partition: TopicPartition, value: Value) -> Attempt:
        attempt = Attempt(partition, value)
        send(self.producer, attempt)
        return attempt

    def flush(self) -> None:
        error = flush(self.producer, MESSAGE_TIMEOUT_MS / 1000)
        if error is not None:
            self.error = error.name()

    def commit(self) -> Outcome:
        """Commit. Returns FAIL if the commit was refused and the transaction then aborted."""
        self.commit_invoked_s = self._workload.clock.monotonic_s()
        error = self._insist(self.producer.commit_transaction)
        if error is None:
            return Outcome.OK
        if error.txn_requires_abort() and self._insist(self.producer.abort_transaction) is None:
            return Outcome.FAIL
        return Outcome.UNKNOWN

    def abort(self) -> Outcome:
        """Abort.

        Returns FAIL even if the abort fails, because nothing requests a commit any more.
        """
        self._insist(self.producer.abort_transaction)
        return Outcome.FAIL

    def _insist(self, step: Callable[..., None]) -> KafkaError | None:
        """Retry a step for the longest time of a request. Returns the last error, or None."""
        clock = self._workload.clock
        deadline_s = clock.monotonic_s() + REQUEST_TIMEOUT_S
        while True:
            try:
                step(REQUEST_TIMEOUT_S)
            except FATAL_ERRORS as raised:
                error = fatal_error(raised)
                self.error = error.name()
                if not error.retriable() or clock.monotonic_s() > deadline_s:
                    return error
            else:
                return None


def transactional_producer(workload: Workload, transactional_id: str) -> Producer:
    """A producer that has fenced all earlier ones with its transactional id."""
    producer = Producer(
        workload.client_config(
            linger_ms=2,
            batch_size=BATCH_SIZE,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            # If the group coordinator is gone, send_offsets_to_transaction waits past its own
            # timeout until some connection changes its state (librdkafka issues 5456, 5511). To
            # close idle connections early causes such a change.
            connections_max_idle_ms=IDLE_MS_MAX,
        )
    )
    deadline_s = workload.clock.monotonic_s() + PATIENCE_S
    while True:
        try:
            producer.init_transactions(REQUEST_TIMEOUT_S)
        except KafkaException as raised:
            if not raised.args[0].retriable() or workload.clock.monotonic_s() > deadline_s:
                raise
        else:
            return producer


def run_transactions(
    workload: Workload, rng: random.Random, transactional_id: str, topic: str = EVENTS
) -> None:
    """Run transactions of a few steps.

    Some are aborted, some stay open because their client is dropped.
    """
    while not workload.stopping.is_set():
        process = workload.history.new_process()
        producer = transactional_producer(workload, transactional_id)
        reader = AssignedReader(workload, process, Isolation.READ_COMMITTED)
        reader.assign(dict.fromkeys(workload.partitions(topic), 0))
        for _ in range(rng.randrange(1, TRANSACTIONS_PER_LIFE_MAX)):
            if workload.clock.wait(workload.stopping, workload.pause_s):
                break
            if not _run_transaction(workload, rng, producer, reader, topic):
                break
        reader.close()
    # End a transaction that the last process may have left open, because it would stop
    # read_committed readers.
    transactional_producer(workload, transactional_id)


def _run_transaction(
    workload: Workload,
    rng: random.Random,
    producer: Producer,
    reader: AssignedReader,
    topic: str,
) -> bool:
    """Run one transaction. Returns False if the producer must be replaced."""
    invoked_s = workload.clock.monotonic_s()
    transaction = Transaction(workload, producer)
    steps: list[Poll | Attempt] = []
    for _ in range(rng.randrange(1, STEPS_MAX + 1)):
        if rng.random() < 0.25:
            transaction.flush()
            steps.append(reader.poll(count_max=100, timeout_s=0.05))
            continue
        for _ in range(rng.randrange(1, RECORDS_PER_STEP_MAX)):
            partition = workload.any_partition(topic, rng)
            steps.append(transaction.send(partition, workload.new_value()))
    left_open = rng.random() < 0.03
    if left_open:
        transaction.flush()
        outcome = Outcome.FAIL
    elif rng.random() < 0.25:
        transaction.flush()
        outcome = transaction.abort()
    else:
        outcome = transaction.commit()
    workload.history.add(
        Operation(
            reader.process,
            Kind.TXN,
            outcome,
            tuple(step if isinstance(step, Poll) else step.as_send() for step in steps),
            invoked_s=invoked_s,
            completed_s=workload.clock.monotonic_s(),
            commit_invoked_s=transaction.commit_invoked_s,
            error=transaction.error,
        )
    )
    return not left_open and not transaction.error
