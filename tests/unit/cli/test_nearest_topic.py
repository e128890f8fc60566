"""The nearest topic name in the error for an unknown topic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from isotherm.cli.client import partitions_of
from isotherm.errors import UnknownTopicOrPartitionError


class Cluster:
    """A client of a cluster with these topics, each of one partition."""

    def __init__(self, *names: str) -> None:
        self.topics = {name: SimpleNamespace(error=None, partitions={0: None}) for name in names}

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> SimpleNamespace:
        found = {name: each for name, each in self.topics.items() if topic in (None, name)}
        return SimpleNamespace(topics=found)


def test_typo_is_answered_with_the_nearest_name() -> None:
    cluster = Cluster("flights", "prices")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"topic=fligths nearest=flights$"):
        partitions_of(cluster, "fligths")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match=r"topic=xyz$"):
        partitions_of(cluster, "xyz")  # type: ignore[arg-type]
