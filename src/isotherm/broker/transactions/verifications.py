"""Verifications under way: whether a transaction was ended between the question and the append.

A leader asks the coordinator whether a partition is part of a transaction, and appends when it is
answered. An end-transaction marker that comes in between would leave records after it that no marker
ever ends. So a marker takes the verification of its producer away. Source: Kafka VerificationGuard,
UnifiedLog.maybeStartTransactionVerification.
"""

from __future__ import annotations

from isotherm.types import ProducerId, TopicPartition


class Verification:
    """One for all questions about the same producer in the same partition."""

    __slots__ = ("askers",)

    def __init__(self) -> None:
        self.askers = 0


class Verifications:
    """Event loop thread only. It holds what is under way, so requests bound it."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[TopicPartition, ProducerId], Verification] = {}

    def begin(self, partition: TopicPartition, producer_id: ProducerId) -> Verification:
        verification = self._under_way.setdefault((partition, producer_id), Verification())
        verification.askers += 1
        return verification

    def finish(
        self, partition: TopicPartition, producer_id: ProducerId, verification: Verification
    ) -> bool:
        """Whether no marker has come since `begin`. The caller appends in the same turn."""
        key = (partition, producer_id)
        holds = self._under_way.get(key) is verification
        verification.askers -= 1
        if holds and not verification.askers:
            del self._under_way[key]
        return holds

    def note_marker(self, partition: TopicPartition, producer_id: ProducerId) -> None:
        if self._under_way:
            self._under_way.pop((partition, producer_id), None)
