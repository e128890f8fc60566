"""Migrates the metadata topic of a running broker to feature level 1, partition by partition.

While a partition is migrated, events are still written to it at level 0. Only the last pass, over
the events since the previous one, blocks writers of that partition. When all partitions are at
level 1, the topic is compacted, and a later start relies on that. After an earlier restart the
migration is repeated, most of which then finds nothing to do. docs/decisions/0027.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.tier.embedded_remote_metadata_topic import EmbeddedRemoteMetadataTopic
from isotherm.broker.tier.remote_metadata_topics import (
    MetadataLevels,
    compact_metadata_topic,
    ensure_metadata_topics,
)
from isotherm.clock import Clock
from isotherm.errors import CorruptMetadataError, RemoteStorageNotReadyError
from isotherm.remote.metadata.folding.fold import OnCorrupt, refuse
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.upkeep.migration import PartitionMigration

_logger = logging.getLogger(__name__)


class MetadataUpgrade:
    """The migration. No effect unless the feature level is above the topic's. Call `run` from one
    thread at a time."""

    def __init__(
        self,
        controller: Controller,
        levels: MetadataLevels,
        topic: EmbeddedRemoteMetadataTopic,
        metadata: TopicBasedRemoteLogMetadataManager,
        settings: TopicBasedSettings,
        *,
        run_control: Callable[[Callable[[], None]], Future[None]],
        clock: Clock,
    ) -> None:
        """`run_control` runs a change of the cluster's metadata on the control thread."""
        self._controller = controller
        self._levels = levels
        self._topic = topic
        self._metadata = metadata
        self._settings = settings
        self._run_control = run_control
        self._clock = clock
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop before the next partition. Any thread may call it."""
        self._cancelled.set()

    def run(self) -> None:
        """Migrate all partitions. Raises the first error; a later run continues from there."""
        if self._levels.feature_level == 0 or self._levels.is_compacted:
            return
        self._run_control(
            lambda: ensure_metadata_topics(self._controller, self._settings, self._levels)
        ).result()
        for number in range(self._topic.partition_count):
            if self._cancelled.is_set():
                return
            if self._levels.level(number) == 0:
                self._migrate(number)
        # Last: compaction drops the records without keys, of which level 0 consists.
        self._run_control(lambda: compact_metadata_topic(self._controller, self._settings)).result()
        _logger.info("metadata topic is at level 1: it is compacted from now on")

    def _migrate(self, number: int) -> None:
        migration = PartitionMigration(
            self._topic, number, clock=self._clock, on_corrupt=self._on_corrupt()
        )
        migration.run()
        # The pass before has done most of the work, so this one blocks writers only briefly.
        with self._metadata.write_lock(number):
            if not migration.run():
                raise RemoteStorageNotReadyError(
                    "keyed records do not match all records of a metadata partition"
                    f" metadata_partition={number} differences={migration.differences()[:10]}"
                )
            # Within the lock: an event of level 0 after the comparison would have no keyed record.
            self._levels.set_migrated(number)
        # Closes the segment, so that the next cleaning can remove the events without waiting for
        # segment.ms.
        self._topic.roll(number)
        _logger.info("metadata partition is at level 1 metadata_partition=%d", number)

    def _on_corrupt(self) -> OnCorrupt:
        """The policy for corrupt records, which is that of the topic's readers: refuse or skip."""
        if self._settings.remote_log_metadata_corrupt_record_policy == "skip":
            return _log_corrupt
        return refuse


def _log_corrupt(error: CorruptMetadataError) -> None:
    _logger.error("metadata record is not migrated: %s", error)
