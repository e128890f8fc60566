"""Plays the five scenarios of KIP-1266 and writes their transcripts.

    python -m tests.support.metadata_scenarios

All parts are real: metadata managers of the brokers, one metadata topic with the log cleaner, and
one bucket. Each scenario ends with the content of the two topics, of the topic after the cleaner,
of the cache of a broker that starts from that, and of the bucket; and with the actions of the
cleanup manager.
"""

from __future__ import annotations

import random
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from isotherm.config.definition import LONG_MAX
from isotherm.errors import RemoteResourceNotFoundError
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.events import iterate_records
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.remote_tier_metrics import RetentionShares
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.cleanup import RemoteMetadataCleanupManager, TierCleanupTarget
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from isotherm.remote.tasks.tier import RemoteTierAccess, StillDue, in_any_case
from isotherm.testing.segment_files import SegmentMaker
from isotherm.testing.sim_clock import SimClock
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition, uuid_from_text, uuid_to_text
from tests.support.hosted_metadata_topics import HostedMetadataTopics
from tests.support.tiered_partition import deletion_at_once

PARTITION = TopicIdPartition(uuid_from_text("abc123AAAAAAAAAAAAAAAA"), "orders", 0)

DATA_EPOCH = 3
"""The leader epoch of every record; later leaders copy earlier records."""

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(slots=True)
class Transcript:
    """The result of a scenario, as lines. Keys are without the partition's `abc123..:0`."""

    name: str
    timeline: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)
    compacted: list[str] = field(default_factory=list)
    cache: list[str] = field(default_factory=list)
    bucket: list[str] = field(default_factory=list)
    after_cleanup: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield self.name
        yield "=" * len(self.name)
        parts = {
            "timeline": self.timeline,
            "__remote_log_metadata": self.messages,
            "__remote_log_metadata_audit": self.audit,
            "__remote_log_metadata after the cleaner": self.compacted,
            "cache of a broker that starts from it": self.cache,
            "bucket": self.bucket,
            "after the cleanup manager: cache, bucket, keys": self.after_cleanup,
        }
        for title, lines in parts.items():
            yield f"{title}:"
            yield from (f"    {line}" for line in lines or ["(empty)"])
        yield ""


class _NoIndexes:
    def remove(self, segment_ids: object) -> None:
        """Do nothing: there is no index cache."""


class Leader:
    """A broker that is or was the partition's leader at one epoch."""

    def __init__(self, stage: Stage, broker_id: int, epoch: LeaderEpoch) -> None:
        self._stage = stage
        self.epoch = epoch
        self.metrics = Metrics()
        self.metadata = TopicBasedRemoteLogMetadataManager(
            stage.topics.metadata_topic,
            clock=stage.clock,
            metrics=self.metrics,
            keyed=KeyedMetadata(stage.topics.audit_topic, lambda _: 1),
        )
        self.metadata.on_partition_leadership_changes([PARTITION], ())
        self.metadata.poll()
        self.tier = RemoteTierAccess(
            storage=stage.storage,
            metadata=self.metadata,
            exclusive=self.metadata,
            index_cache=_NoIndexes(),
            copies=CopiesInProgress(),
            clock=stage.clock,
            rng=random.Random(0),
            broker_id=broker_id,
            metrics=BrokerTopicMetrics(self.metrics),
            retention_shares=RetentionShares(self.metrics),
            copy_quota=RemoteQuota(LONG_MAX, QuotaWindows(1000, 11), stage.clock),
            custom_metadata_size_max=lambda: 128,
            leader_epoch_of=lambda _: epoch if stage.topic_exists else None,
            is_tiered=lambda _: False,
        )

    def start(
        self, name: str, end_offset: Offset, *, still_local: StillDue = in_any_case
    ) -> RemoteLogSegmentMetadata:
        """Publish COPY_SEGMENT_STARTED as the copy task does, and copy the objects."""
        made = self._stage.maker.segment(
            PARTITION, start_offset=end_offset - 999, record_count=1000, size=2000
        )
        metadata = replace(
            made.metadata,
            segment_id=RemoteLogSegmentId(PARTITION, self._stage.name(name)),
            segment_leader_epochs={DATA_EPOCH: end_offset - 999},
            broker_id=self.tier.broker_id,
            event_timestamp_ms=self._stage.clock.now_ms(),
            broker_leader_epoch=self.epoch,
        )
        self.metadata.poll()
        self.tier.make_way_for(metadata, still_local)
        self.metadata.add_remote_log_segment_metadata(metadata).result()
        self._stage.storage.copy_log_segment_data(metadata, made.data)
        return metadata

    def finish(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.metadata.poll()
        self.tier.publish(self.tier.update_of(metadata, FINISHED, None))

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """The partition's segments; none once its deletion is finished."""
        self.metadata.poll()
        try:
            return self.metadata.list_remote_log_segments(PARTITION)
        except RemoteResourceNotFoundError:
            return []


class Stage:
    """The state that a scenario's brokers share: metadata topic, audit topic and bucket, in a
    folder.
    """

    def __init__(self, directory: Path) -> None:
        self.clock = SimClock()
        self.topics = HostedMetadataTopics(directory, self.clock)
        self._bucket = directory / "bucket"
        self.storage = ObjectStoreRemoteStorageManager(
            ObjectStoreSettings(url=self._bucket.as_uri())
        )
        self.maker = SegmentMaker(directory / "segments")
        self.topic_exists = True
        self._names: dict[uuid.UUID, str] = {}

    def name(self, name: str) -> uuid.UUID:
        segment = uuid.UUID(int=len(self._names) + 1)
        self._names[segment] = name
        return segment

    def close(self) -> None:
        self.storage.close()

    def conclude(self, transcript: Transcript) -> Transcript:
        """Run the cleaner, start a broker, run the cleanup manager, and write the results."""
        topics = self.topics
        transcript.messages = self._records(topics.metadata_topic)
        transcript.audit = self._records(topics.audit_topic)
        topics.compact()
        transcript.compacted = self._records(topics.metadata_topic)
        starting = Leader(self, broker_id=103, epoch=9)
        transcript.cache = self._cache(starting)
        transcript.bucket = self._objects()
        self.check_agreement(starting)
        self._clean_up(starting)
        topics.compact()
        starting = Leader(self, broker_id=103, epoch=9)
        self.check_agreement(starting)
        keys = [f"key {line.split()[1]}" for line in self._records(topics.metadata_topic)]
        transcript.after_cleanup = [*self._cache(starting), *self._objects(), *keys]
        return transcript

    def _clean_up(self, leader: Leader) -> None:
        settings = TopicBasedSettings()
        self.clock.advance(settings.remote_log_metadata_cleanup_grace_ms + 1)
        RemoteMetadataCleanupManager(
            self.topics.metadata_topic,
            TierCleanupTarget(
                leader.tier,
                leader.metadata,
                lambda partition: deletion_at_once(leader.tier, partition),
                leads=lambda _: True,
                keeps=lambda _: True,
                is_alone=True,
            ),
            settings,
            clock=self.clock,
            metrics=leader.metrics,
        ).run()

    def check_agreement(self, leader: Leader) -> None:
        """Check that metadata names every object, and that every finished segment has its
        objects."""
        listed = leader.segments()
        named = {self._names[segment.segment_id.id] for segment in listed}
        stored = {line.split()[0] for line in self._objects()}
        finished = {
            self._names[segment.segment_id.id] for segment in listed if segment.state is FINISHED
        }
        assert stored <= named, f"objects without metadata: {sorted(stored - named)}"
        assert finished <= stored, f"metadata without objects: {sorted(finished - stored)}"

    def _records(self, topic: MetadataTopic) -> list[str]:
        return [
            f"{record.offset:>2}  {self._describe(record)}" for record in iterate_records(topic, 0)
        ]

    def _describe(self, record: MetadataTopicRecord) -> str:
        """Key and value, with the topic id in the proposal's form."""
        assert record.key is not None
        key = f"abc123{record.key.decode().removeprefix(uuid_to_text(PARTITION.topic_id))}"
        match None if record.value is None else decode_event(record.value):
            case RemoteLogSegmentMetadata() | RemoteLogSegmentMetadataUpdate() as event:
                kind = 0 if isinstance(event, RemoteLogSegmentMetadata) else 1
                name = self._names[event.segment_id.id]
                value = f"apiKey={kind} {name} {event.state.name} broker={event.broker_id}"
            case RemotePartitionDeleteMetadata() as event:
                value = f"apiKey=2 {event.state.name}"
            case _:
                value = "null"
        return f"{key:<15}  {value}"

    def _cache(self, leader: Leader) -> list[str]:
        lines = []
        for segment in leader.segments():
            found = leader.metadata.remote_log_segment_metadata(
                PARTITION, DATA_EPOCH, segment.end_offset_inclusive
            )
            answers = "  answers reads" if found == segment else ""
            name = self._names[segment.segment_id.id]
            span = f"{segment.start_offset}..{segment.end_offset_inclusive}"
            lines.append(
                f"{name} {segment.state.name} {span} epoch={segment.broker_leader_epoch}{answers}"
            )
        return lines

    def _objects(self) -> list[str]:
        files = [path.name for path in self._bucket.rglob("*") if path.is_file()]
        lines = []
        for segment, name in self._names.items():
            suffixes = sorted(
                file.rpartition(".")[2] for file in files if uuid_to_text(segment) in file
            )
            if suffixes:
                lines.append(f"{name} {' '.join(suffixes)}")
        assert sum(len(line.split()) - 1 for line in lines) == len(files), "object of no segment"
        return lines


def normal_upload(stage: Stage) -> Transcript:
    transcript = Transcript("Scenario 1: normal segment upload")
    leader = Leader(stage, 101, 3)
    transcript.timeline = [
        "T1 broker 101 (epoch 3) starts the upload of UUID-A",
        "T2 the upload completes",
    ]
    leader.finish(leader.start("UUID-A", 1000))
    return stage.conclude(transcript)


def leadership_change(stage: Stage) -> Transcript:
    transcript = Transcript("Scenario 2: leadership change during an upload")
    transcript.timeline = [
        "T1 broker 101 (epoch 3) starts the upload of UUID-A",
        "T2 broker 102 leads at epoch 4",
        "T3 broker 102 starts the upload of UUID-B",
        "T4 broker 101 finishes UUID-A",
        "T5 broker 102 finishes UUID-B",
    ]
    first, second = Leader(stage, 101, 3), Leader(stage, 102, 4)
    of_first = first.start("UUID-A", 2000)
    of_second = second.start("UUID-B", 2000)
    first.finish(of_first)
    second.finish(of_second)
    return stage.conclude(transcript)


def retry_under_one_epoch(stage: Stage) -> Transcript:
    transcript = Transcript("Scenario 3: failed upload under the same leader epoch")
    transcript.timeline = [
        "T1 broker 101 (epoch 5) starts the upload of UUID-A",
        "T2 the network times out: objects of UUID-A are there, and no message",
        "T3 the retry deletes UUID-A, then starts UUID-B under the same key",
        "T4 the upload of UUID-B completes",
    ]
    leader = Leader(stage, 101, 5)
    leader.start("UUID-A", 3000)
    leader.finish(leader.start("UUID-B", 3000))
    return stage.conclude(transcript)


def deletion_after_several_epochs(stage: Stage) -> Transcript:
    transcript = Transcript("Scenario 4: segment deletion after several epochs")
    transcript.timeline = [
        "T0 UUID-A, UUID-B and UUID-C were uploaded under epochs 3, 4 and 5",
        "T1 broker 102 (epoch 6) deletes what ends at offset 1000: each upload is marked under the",
        "   key of epoch 6, its objects go, its deletion is finished, its keys get tombstones",
    ]
    for epoch, name in ((3, "UUID-A"), (4, "UUID-B"), (5, "UUID-C")):
        leader = Leader(stage, 101, epoch)
        leader.finish(leader.start(name, 1000))
    last = Leader(stage, 102, 6)
    for metadata in sorted(last.segments(), key=lambda each: each.broker_leader_epoch):
        last.tier.delete_segment(metadata)
    return stage.conclude(transcript)


def partition_deletion(stage: Stage) -> Transcript:
    transcript = Transcript("Scenario 5: partition deletion")
    transcript.timeline = [
        "T0 UUID-A and UUID-B were uploaded under epoch 3",
        "T1 the topic is gone: the deletion of its partition is marked and starts",
        (
            "T2 every segment is deleted, the deletion is finished, every segment's key gets a"
            " tombstone"
        ),
    ]
    leader = Leader(stage, 101, 3)
    for name, end_offset in (("UUID-A", 1000), ("UUID-B", 2000)):
        leader.finish(leader.start(name, end_offset))
    stage.topic_exists = False
    delete_remote_partition(leader.tier, PARTITION)
    return stage.conclude(transcript)


SCENARIOS: tuple[Callable[[Stage], Transcript], ...] = (
    normal_upload,
    leadership_change,
    retry_under_one_epoch,
    deletion_after_several_epochs,
    partition_deletion,
)


def play(scenario: Callable[[Stage], Transcript], directory: Path) -> Transcript:
    """Play a scenario. AssertionError if objects and metadata disagree at the end."""
    stage = Stage(directory)
    try:
        return scenario(stage)
    finally:
        stage.close()


def main() -> None:
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory() as directory:
            transcript = play(scenario, Path(directory))
        sys.stdout.write("\n".join(transcript.lines()) + "\n")


if __name__ == "__main__":
    main()
