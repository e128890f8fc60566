"""Replica fetchers that can be stopped and measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from isotherm.broker.partitions.replica_roles import NoFetchers, ReplicaFetchers
from isotherm.types import Offset, TopicPartition


class Fetchers(ReplicaFetchers, Protocol):
    def stop(self) -> None:
        """Stop fetching. Returns when every append has ended."""

    def lags(self) -> Mapping[TopicPartition, Offset]:
        """The lag of each partition in offsets, where it is known."""

    def failed_partitions(self) -> Collection[TopicPartition]:
        """The partitions that are not fetched before a new leader epoch."""


class NothingToStop(NoFetchers):
    """NoFetchers as `Fetchers`."""

    def stop(self) -> None:
        return

    def lags(self) -> Mapping[TopicPartition, Offset]:
        return {}

    def failed_partitions(self) -> Collection[TopicPartition]:
        return ()
