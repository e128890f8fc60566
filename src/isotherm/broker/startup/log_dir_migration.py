"""Migrates the `__remote_log_metadata` of a stopped broker to level 1, in its log directories.

The order of the steps makes a crash at any point harmless: the broker can start, and the migration
can be repeated.

1. Write the live state as keyed records and verify it, partition by partition. 2. Set the feature
`remote.log.metadata.compaction` to 1. From the next start on every event is keyed, and that start
adds what is missing. 3. Create the audit topic. 4. Compact the topic from the next start of the
broker on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from isotherm.broker.metadata.cluster_metadata_topic import BATCH_SIZE_MAX
from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.features import (
    METADATA_COMPACTION_FEATURE,
    FeatureUpdate,
    UpgradeType,
)
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import decode_record
from isotherm.broker.startup.local_tier import LocalTier, open_local_tier
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.remote_metadata_partition_log import (
    metadata_batch,
    read_metadata_columns,
    read_metadata_records,
)
from isotherm.broker.tier.remote_metadata_topics import (
    MetadataLevels,
    compact_metadata_topic,
    ensure_metadata_topics,
)
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import (
    CorruptMetadataError,
    LogDirFailedError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.validation import AppendOrigin
from isotherm.remote.metadata.api import (
    MetadataColumns,
    MetadataTopicRecord,
    NewMetadataRecord,
)
from isotherm.remote.metadata.folding.fold import OnCorrupt, refuse
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.upkeep.migration import PartitionMigration, PartitionSurvey
from isotherm.types import (
    CLUSTER_METADATA_TOPIC,
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    Offset,
    TimestampMs,
    TopicPartition,
)

_logger = logging.getLogger(__name__)

# Called after each step with a metadata partition, the records written to it, and the records to
# write.
Progress = Callable[[int, int, int], None]


def migrate_log_dirs(
    config: BrokerConfig,
    *,
    clock: Clock,
    fs: FileSystem,
    rng: random.Random,
    progress: Progress,
    on_corrupt: OnCorrupt = refuse,
    audit_retention_ms: int | None = None,
) -> list[PartitionSurvey]:
    """Migrate a stopped broker's log directories to level 1, and return the survey of each
    partition.

    A second call has no effect. Raises LogDirFailedError if a broker is running on the directories,
    and PolicyViolationError if they are not Isotherm's. Raises CorruptMetadataError if a record is
    malformed or if the written records do not match the events; then the level is unchanged.
    """
    settings = TopicBasedSettings.from_config(config.remote.rlmm_config)
    with _opened(config, clock, fs, rng) as tier:
        controller = tier.controller
        if controller.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC) is None:
            raise UnknownTopicOrPartitionError(
                f"there is nothing to migrate topic={REMOTE_LOG_METADATA_TOPIC}"
            )
        topic = LocalMetadataTopic(tier.log_manager, clock, _partition_count(controller))
        surveys = [
            _migrate(topic, number, clock, progress, on_corrupt)
            for number in range(topic.partition_count)
        ]
        upgrade = FeatureUpdate(METADATA_COMPACTION_FEATURE, 1, UpgradeType.UPGRADE)
        controller.update_features([upgrade])
        ensure_metadata_topics(controller, settings, MetadataLevels(controller))
        if audit_retention_ms is not None:
            change = ConfigChange("retention.ms", ConfigOperation.SET, str(audit_retention_ms))
            controller.alter_topic_config(REMOTE_LOG_METADATA_AUDIT_TOPIC, [change])
        compact_metadata_topic(controller, settings)
        return surveys


def check_is_isotherms(config: BrokerConfig) -> None:
    """Raises PolicyViolationError if the directories' metadata log was not written by Isotherm.

    Only reads, because opening the logs would modify a directory of Apache Kafka.
    """
    try:
        log = LogDirMetadataTopic(config.log_dirs, CLUSTER_METADATA_TOPIC)
        delta = MetadataDelta(MetadataImage())
        offset, end = log.offsets(0)
        while offset < end:
            columns = log.read_columns(0, offset, BATCH_SIZE_MAX)
            for value in columns.value.to_pylist():
                delta.replay(decode_record(value or b""))
            # At least by one, so that an incomplete last batch ends the loop.
            offset = max(columns.next_offset, offset + 1)
    except (CorruptMetadataError, UnknownTopicOrPartitionError) as error:
        raise PolicyViolationError(
            "the log directories are not those of an Isotherm broker, and the metadata topic of"
            " Apache Kafka's brokers is never written to"
            f" log.dirs={','.join(map(str, config.log_dirs))}"
        ) from error


@contextmanager
def _opened(
    config: BrokerConfig, clock: Clock, fs: FileSystem, rng: random.Random
) -> Iterator[LocalTier]:
    def fail(log_dir: LogDir) -> None:
        _logger.error("log directory fails during the migration log_dir=%s", log_dir.path)

    check_is_isotherms(config)
    tier = open_local_tier(
        config, Surroundings(clock=clock, fs=fs, rng=rng), on_log_dir_failure=fail
    )
    try:
        yield tier
    finally:
        tier.log_manager.shutdown()


def _partition_count(controller: Controller) -> int:
    return len(controller.image.topics_by_name[REMOTE_LOG_METADATA_TOPIC].partitions)


def _migrate(
    topic: LocalMetadataTopic,
    number: int,
    clock: Clock,
    progress: Progress,
    on_corrupt: OnCorrupt,
) -> PartitionSurvey:
    migration = PartitionMigration(topic, number, clock=clock, on_corrupt=on_corrupt)
    survey = migration.survey()
    progress(number, 0, survey.states_to_write + survey.tombstones_to_write)
    is_done = migration.run(lambda written, total: progress(number, written, total))
    differences = migration.differences()
    if not is_done or differences:
        raise CorruptMetadataError(
            "the written records do not match the events; the level is unchanged"
            f" topic={REMOTE_LOG_METADATA_TOPIC} partition={number} differences={differences[:3]}"
        )
    if survey.counts.without_key:
        topic.roll(number)
    return survey


class LocalMetadataTopic:
    """A `MetadataTopic` over the logs of a stopped broker. Not thread-safe."""

    def __init__(self, log_manager: LogManager, clock: Clock, partition_count: int) -> None:
        self._log_manager = log_manager
        self._clock = clock
        self._partition_count = partition_count

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        return self.append_all(partition, [NewMetadataRecord(key, value, timestamp_ms)])

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        log = self._log(partition)
        latest = log.leader_epochs.latest
        info = log.append_as_leader(
            metadata_batch(records),
            0 if latest is None else latest.epoch,
            now_ms=self._clock.now_ms(),
            origin=AppendOrigin.COORDINATOR,
        )
        log.flush()
        return info.first_offset

    def roll(self, partition: int) -> None:
        """Close the active segment, so that the cleaner can process it."""
        self._log(partition).roll()

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        return read_metadata_records(self._log(partition), partition, start_offset, max_bytes)

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return read_metadata_columns(self._log(partition), start_offset, max_bytes)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        log = self._log(partition)
        return log.log_start_offset, log.log_end_offset

    def is_current(self, partition: int) -> bool:
        return True

    def close(self) -> None:
        """No effect: the log manager owns the logs."""

    def _log(self, partition: int) -> PartitionLog:
        log = self._log_manager.log(TopicPartition(REMOTE_LOG_METADATA_TOPIC, partition))
        if log is None:
            raise LogDirFailedError(
                "a partition of the metadata topic does not exist; is a log directory missing?"
                f" topic={REMOTE_LOG_METADATA_TOPIC} partition={partition}"
            )
        # There is a single replica, so everything in its log is committed.
        log.update_high_watermark(log.log_end_offset)
        return log
