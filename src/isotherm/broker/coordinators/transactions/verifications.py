"""Detects that a transaction ended between the question to its coordinator and the append.

A leader asks the coordinator whether a partition is part of a transaction, and appends after the
answer. If an end-transaction marker were appended in between, the records after it would never get
a marker. So a marker removes the verification of its producer, and the append is refused. Source:
Kafka VerificationGuard, UnifiedLog.maybeStartTransactionVerification.
"""

from __future__ import annotations

from isotherm.types import ProducerId, TopicPartition


class Verification:
    """Shared by all concurrent questions about the same producer in the same partition."""

    __slots__ = ("askers",)

    def __init__(self) -> None:
        self.askers = 0


class Verifications:
    """The verifications in progress. Requests in progress bound them. Event loop thread only."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[TopicPartition, ProducerId], Verification] = {}

    def begin(self, partition: TopicPartition, producer_id: ProducerId) -> Verification:
        verification = self._under_way.setdefault((partition, producer_id), Verification())
        verification.askers += 1
        return verification

    def finish(
        self, partition: TopicPartition, producer_id: ProducerId, verification: Verification
    ) -> bool:
        """Returns whether no marker was appended since `begin`.

        The caller appends in the same loop iteration.
        """
        key = (partition, producer_id)
        holds = self._under_way.get(key) is verification
        verification.askers -= 1
        if holds and not verification.askers:
            del self._under_way[key]
        return holds

    def note_marker(self, partition: TopicPartition, producer_id: ProducerId) -> None:
        if self._under_way:
            self._under_way.pop((partition, producer_id), None)
