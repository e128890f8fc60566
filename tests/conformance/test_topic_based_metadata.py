"""TopicBasedRemoteLogMetadataManager on a topic in memory: polled by the test at both feature
levels, and following the topic in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from isotherm.clock import SystemClock
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.testing.conformance.remote_metadata import RemoteLogMetadataManagerConformance
from isotherm.testing.sim_clock import SimClock
from tests.support.memory_metadata_topic import MemoryMetadataTopic


class TestPolled(RemoteLogMetadataManagerConformance):
    @pytest.fixture
    def manager(self) -> TopicBasedRemoteLogMetadataManager:
        return TopicBasedRemoteLogMetadataManager(
            MemoryMetadataTopic(3), clock=SimClock(auto_advance=True), metrics=Metrics()
        )

    @pytest.fixture
    def settle(self, manager: TopicBasedRemoteLogMetadataManager) -> Callable[[], None]:
        return manager.poll


class TestKeyed(RemoteLogMetadataManagerConformance):
    """Feature level 1."""

    @pytest.fixture
    def manager(self) -> TopicBasedRemoteLogMetadataManager:
        return TopicBasedRemoteLogMetadataManager(
            MemoryMetadataTopic(3),
            clock=SimClock(auto_advance=True),
            metrics=Metrics(),
            keyed=KeyedMetadata(MemoryMetadataTopic(3), lambda _: 1),
        )

    @pytest.fixture
    def settle(self, manager: TopicBasedRemoteLogMetadataManager) -> Callable[[], None]:
        return manager.poll


class TestFollowing(RemoteLogMetadataManagerConformance):
    @pytest.fixture
    def manager(self) -> Iterator[TopicBasedRemoteLogMetadataManager]:
        manager = TopicBasedRemoteLogMetadataManager(
            MemoryMetadataTopic(3),
            clock=SystemClock(),
            metrics=Metrics(),
            settings=TopicBasedSettings(
                remote_log_metadata_poll_interval_ms=1, remote_log_metadata_read_wait_ms=30_000
            ),
        )
        manager.start()
        yield manager
        manager.close()

    @pytest.fixture
    def settle(self, manager: TopicBasedRemoteLogMetadataManager) -> Callable[[], None]:
        """Read the topic to its end: `is_ready` does not wait for that, as the other reads do."""
        return manager.poll
