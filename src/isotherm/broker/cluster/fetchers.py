"""Fetchers of followed partitions that can be stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from isotherm.broker.replication.replica_roles import NoFetchers, ReplicaFetchers
from isotherm.types import Offset, TopicPartition


class Fetchers(ReplicaFetchers, Protocol):
    def stop(self) -> None:
        """Fetch nothing any more. Returns when every append has ended."""

    def lags(self) -> Mapping[TopicPartition, Offset]:
        """By how many offsets each partition is behind its leader, where that is known."""

    def failed_partitions(self) -> Collection[TopicPartition]:
        """Those that wait for a new leader epoch."""


class NothingToStop(NoFetchers):
    """Of a broker that leads everything it has."""

    def stop(self) -> None:
        return

    def lags(self) -> Mapping[TopicPartition, Offset]:
        return {}

    def failed_partitions(self) -> Collection[TopicPartition]:
        return ()
