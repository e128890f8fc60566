"""Rebuilds the log directories of a stopped broker, lost or new, for topics with tiered history.

To serve history that exists only in the bucket, a broker needs:

1. the topic with its old id, and its partitions, in the cluster's metadata; 2. the segments in
`__remote_log_metadata`; 3. for each partition, a log that starts where the history ends
(rebuilt_partitions), so that appends continue after the history, with later epochs.

Topics get unlimited retention.ms and retention.bytes. With the defaults, the broker would delete
records older than a week as soon as it starts.

The order of writing is 1, 3, 2. After a crash in between, the directories cannot be rebuilt again,
because the topics exist. Start again with empty directories.
"""

from __future__ import annotations

import itertools
import logging
import random
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from isotherm.broker.metadata.cluster_metadata_topic import METADATA_LOG_CONFIG, METADATA_TOPIC_ID
from isotherm.broker.metadata.controller.cluster_metadata_log import MetadataLog
from isotherm.broker.metadata.controller.topic_rules import config_records, partition_record
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import (
    TOPIC_RESOURCE,
    MetadataRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from isotherm.broker.startup.identity import establish_identity
from isotherm.broker.startup.local_tier import LocalTier, open_local_tier
from isotherm.broker.startup.log_dir_migration import LocalMetadataTopic
from isotherm.broker.startup.rebuilt_partitions import (
    RebuiltPartition,
    write_log_starts,
    write_partition_directory,
)
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.remote_metadata_topics import deleted_settings
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import ConfigError, TopicAlreadyExistsError
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.types import (
    REMOTE_LOG_METADATA_TOPIC,
    BrokerId,
    TopicPartition,
    random_uuid,
)

_logger = logging.getLogger(__name__)

TOPIC_SETTINGS = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
_PRODUCER_IDS_PER_BLOCK = 1000
_RECORDS_PER_BATCH = 5000
_EVENTS_PER_APPEND = 500


def rebuild_log_dirs(
    config: BrokerConfig,
    partitions: Sequence[RebuiltPartition],
    events: Iterable[tuple[int, NewMetadataRecord]],
    *,
    clock: Clock,
    fs: FileSystem,
    rng: random.Random,
) -> int:
    """Write everything, and return the number of metadata events.

    Each of `events` has its metadata partition. They are grouped by that partition, and in order
    within each.
    Raises TopicAlreadyExistsError, with nothing written, if the cluster has one of the topics or a
    metadata topic. Raises LogDirFailedError if a broker is running on the directories.
    """
    settings = TopicBasedSettings.from_config(config.remote.rlmm_config)
    _write_topics(config, partitions, settings, clock, fs, rng)
    for index, log_dir in enumerate(config.log_dirs):
        mine = partitions[index :: len(config.log_dirs)]
        for partition in mine:
            write_partition_directory(fs, log_dir, partition, clock.now_ms())
        write_log_starts(fs, log_dir, mine)
    return _write_records(config, events, clock, fs, rng)


def metadata_partition_count(config: BrokerConfig) -> int:
    settings = TopicBasedSettings.from_config(config.remote.rlmm_config)
    return settings.remote_log_metadata_topic_num_partitions


def _write_topics(
    config: BrokerConfig,
    partitions: Sequence[RebuiltPartition],
    settings: TopicBasedSettings,
    clock: Clock,
    fs: FileSystem,
    rng: random.Random,
) -> None:
    log_manager = LogManager(
        config.log_dirs,
        config=config,
        topic_config_for=lambda topic: TopicConfig(),
        clock=clock,
        fs=fs,
        rng=rng,
    )
    try:
        log = log_manager.open_metadata_log(METADATA_LOG_CONFIG, METADATA_TOPIC_ID)
        establish_identity(fs, log_manager.live_log_dirs(), config.node_id, rng)
        metadata_log = MetadataLog(log, clock)
        delta = MetadataDelta(MetadataImage())
        for record in metadata_log.replay():
            delta.replay(record)
        image = delta.apply(metadata_log.end_offset)
        named = _topic_names(partitions)
        taken = sorted(set(image.topics_by_name) & {*named.values(), REMOTE_LOG_METADATA_TOPIC})
        if taken:
            raise TopicAlreadyExistsError(
                f"the log directories already have topics of the rebuild topics={','.join(taken)}"
                " hint='rebuild into empty directories'"
            )
        records = _topic_records(config.node_id, partitions)
        records += _metadata_topic_records(config.node_id, settings, random_uuid(rng))
        for start in range(0, len(records), _RECORDS_PER_BATCH):
            metadata_log.append(records[start : start + _RECORDS_PER_BATCH])
    finally:
        log_manager.shutdown()


def _topic_names(partitions: Sequence[RebuiltPartition]) -> dict[uuid.UUID, str]:
    """The names by topic id.

    Raises ConfigError if two topics with the same name are to be rebuilt.
    """
    names = {partition.owner.topic_id: partition.owner.topic for partition in partitions}
    twice = [name for name, number in Counter(names.values()).items() if number > 1]
    if twice:
        raise ConfigError(
            f"a topic has several ids in the bucket, and only one can be rebuilt topic={twice[0]}"
            " hint='choose with --only-id'"
        )
    return names


def _topic_records(
    node_id: BrokerId, partitions: Sequence[RebuiltPartition]
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    producer_id_max = -1
    for topic_id, name in _topic_names(partitions).items():
        epochs: dict[int, int] = {}
        for partition in partitions:
            if partition.owner.topic_id == topic_id:
                epochs[partition.owner.partition] = (
                    partition.epochs[-1].epoch if partition.epochs else 0
                )
                ids = [producer.producer_id for producer in partition.producers()]
                producer_id_max = max(producer_id_max, *ids, -1)
        records.append(TopicRecord(name=name, topic_id=topic_id))
        records += config_records(TOPIC_RESOURCE, name, TOPIC_SETTINGS)
        # Partition numbers have no gaps, so a partition without history between others is created
        # empty.
        records += [
            replace(
                partition_record(topic_id, number, (node_id,)), leader_epoch=epochs.get(number, 0)
            )
            for number in range(max(epochs) + 1)
        ]
    if producer_id_max >= 0:
        # Producer ids in the logs must not be assigned again, because the logs have the state of
        # their producers.
        next_block = (producer_id_max // _PRODUCER_IDS_PER_BLOCK + 1) * _PRODUCER_IDS_PER_BLOCK
        records.append(
            ProducerIdsRecord(broker_id=node_id, broker_epoch=0, next_producer_id=next_block)
        )
    return records


def _metadata_topic_records(
    node_id: BrokerId, settings: TopicBasedSettings, topic_id: uuid.UUID
) -> list[MetadataRecord]:
    count = settings.remote_log_metadata_topic_num_partitions
    configs = deleted_settings(settings.remote_log_metadata_topic_retention_ms)
    return [
        TopicRecord(name=REMOTE_LOG_METADATA_TOPIC, topic_id=topic_id),
        *config_records(TOPIC_RESOURCE, REMOTE_LOG_METADATA_TOPIC, configs),
        *(partition_record(topic_id, number, (node_id,)) for number in range(count)),
    ]


def _write_records(
    config: BrokerConfig,
    events: Iterable[tuple[int, NewMetadataRecord]],
    clock: Clock,
    fs: FileSystem,
    rng: random.Random,
) -> int:
    def fail(log_dir: LogDir) -> None:
        _logger.error("log directory fails while it is rebuilt log_dir=%s", log_dir.path)

    tier = open_local_tier(
        config, Surroundings(clock=clock, fs=fs, rng=rng), on_log_dir_failure=fail
    )
    try:
        return _write_events(tier, events, clock)
    finally:
        tier.log_manager.shutdown()


def _write_events(
    tier: LocalTier, events: Iterable[tuple[int, NewMetadataRecord]], clock: Clock
) -> int:
    topic = tier.controller.image.topics_by_name[REMOTE_LOG_METADATA_TOPIC]
    topic_config = tier.controller.topic_config(REMOTE_LOG_METADATA_TOPIC)
    for partition in topic.partitions:
        place = TopicPartition(REMOTE_LOG_METADATA_TOPIC, partition.partition)
        tier.log_manager.create_log(place, topic.topic_id, topic_config)
    target = LocalMetadataTopic(tier.log_manager, clock, len(topic.partitions))
    written = 0
    for number, records in itertools.groupby(events, key=lambda event: event[0]):
        for chunk in _batched((record for _, record in records), _EVENTS_PER_APPEND):
            target.append_all(number, chunk)
            written += len(chunk)
    return written


def _batched(records: Iterable[NewMetadataRecord], size: int) -> Iterator[list[NewMetadataRecord]]:
    iterator = iter(records)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
