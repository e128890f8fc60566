"""Workers that consume, transform and produce, and commit offsets and records in one transaction.

Each record of EVENTS has to arrive in COPIES exactly once, whatever happens to the broker and the
members.
"""

from __future__ import annotations

import random

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from isotherm.types import TopicPartition
from tests.support.correctness.consuming import (
    SESSION_TIMEOUT_MS,
    Ends,
    close_member,
    new_consumer,
    to_read,
)
from tests.support.correctness.history import (
    Isolation,
    Kind,
    Operation,
    Outcome,
    Poll,
    Read,
)
from tests.support.correctness.producing import FATAL_ERRORS, fatal_error
from tests.support.correctness.transacting import Transaction, transactional_producer
from tests.support.correctness.workload import COPIES, EVENTS, REQUEST_TIMEOUT_S, Workload

GROUP = "copiers"
RECORDS_PER_TRANSACTION_MAX = 200
TRANSACTIONS_PER_LIFE_MAX = 40
POLL_TIMEOUT_S = 0.1


class Copier:
    """The life of one member of GROUP, with the producer that writes its copies."""

    def __init__(self, workload: Workload, transactional_id: str) -> None:
        self.ends = Ends()
        """The ends that the member has reached in its partitions."""
        self._workload = workload
        self._process = workload.history.new_process()
        self._producer: Producer = transactional_producer(workload, transactional_id)
        self._rebalanced = False
        self._consumer: Consumer = new_consumer(
            workload,
            Isolation.READ_COMMITTED,
            group_id=GROUP,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=500,
        )
        self._consumer.subscribe(
            [EVENTS], on_assign=self._on_rebalance, on_revoke=self._on_rebalance
        )
        now_s = workload.clock.monotonic_s()
        workload.history.add(
            Operation(self._process, Kind.SUBSCRIBE, Outcome.OK, completed_s=now_s)
        )

    def copy_some(self) -> bool:
        """Run one transaction if there are records to copy.

        Returns False if the member must be replaced.
        """
        invoked_s = self._workload.clock.monotonic_s()
        reads = self._read_some()
        if not reads:
            return not self._has_lost_a_position(invoked_s)
        transaction = Transaction(self._workload, self._producer)
        attempts = [
            transaction.send(TopicPartition(COPIES, read.value % 2), read.value) for read in reads
        ]
        ends = {read.partition: read.offset + 1 for read in reads}
        try:
            self._producer.send_offsets_to_transaction(
                [ClientPartition(*partition, end) for partition, end in ends.items()],
                self._consumer.consumer_group_metadata(),
                REQUEST_TIMEOUT_S,
            )
        except FATAL_ERRORS as raised:
            transaction.error = fatal_error(raised).name()
            outcome = transaction.abort()
        else:
            outcome = transaction.commit()
        self._workload.history.add(
            Operation(
                self._process,
                Kind.TXN,
                outcome,
                (Poll(tuple(reads)), *(attempt.as_send() for attempt in attempts)),
                invoked_s=invoked_s,
                completed_s=self._workload.clock.monotonic_s(),
                commit_invoked_s=transaction.commit_invoked_s,
                error=transaction.error,
            )
        )
        return outcome is Outcome.OK

    def close(self) -> None:
        close_member(self._consumer)

    def _read_some(self) -> list[Read]:
        """The records of one assignment. Records from before a rebalance are dropped, because
        another member may have got their partition."""
        reads: list[Read] = []
        while len(reads) < RECORDS_PER_TRANSACTION_MAX:
            self._rebalanced = False
            message = self._consumer.poll(POLL_TIMEOUT_S)
            if self._rebalanced:
                reads.clear()
                self.ends.clear()
            if message is None:
                break
            read = to_read(message, self.ends)
            if read is not None:
                reads.append(read)
        return reads

    def _has_lost_a_position(self, invoked_s: float) -> bool:
        """Whether the log lacks an offset that the group has reached.

        If so, it is added to the history.
        """
        lost = tuple(self.ends.out_of_range.items())
        if lost:
            self._workload.history.add(
                Operation(
                    self._process,
                    Kind.POLL,
                    Outcome.OK,
                    out_of_range=lost,
                    invoked_s=invoked_s,
                    completed_s=self._workload.clock.monotonic_s(),
                )
            )
        return bool(lost)

    def _on_rebalance(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._rebalanced = True


def run_copier(workload: Workload, rng: random.Random, transactional_id: str) -> None:
    while not workload.stopping.is_set():
        copier = Copier(workload, transactional_id)
        for _ in range(rng.randrange(1, TRANSACTIONS_PER_LIFE_MAX)):
            if workload.stopping.is_set() or not copier.copy_some():
                break
        copier.close()


def copy_the_rest(workload: Workload, transactional_id: str, timeout_s: float) -> None:
    """Copy the records that the workers have not copied, up to the end of each partition or the
    time limit.
    """
    deadline_s = workload.clock.monotonic_s() + timeout_s
    wanted = set(workload.partitions(EVENTS))
    copier = Copier(workload, transactional_id)
    while not copier.ends.reached >= wanted and workload.clock.monotonic_s() < deadline_s:
        if not copier.copy_some():
            copier.close()
            copier = Copier(workload, transactional_id)
    copier.close()
