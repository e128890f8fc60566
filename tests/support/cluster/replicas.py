"""Checks that the replicas of a cluster and its bucket agree once the cluster is idle.

    unequal-replicas    replicas differ in the bytes at an offset that both have, or in the log end
    vanished-read       a record that a consumer got is gone or replaced by another
    not-in-sync         a replica has not caught up
    unsettled           the bucket keeps changing

and what `settled_tier` names: hole, leaked-object, missing-object, damaged-object. An upload that a
kill has cut stays as it is, as in a cluster of Apache Kafka: no broker can know that no other
continues it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.clock import Clock
from isotherm.record.batch import iterate_batches
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.rewrite_tasks import open_journals
from isotherm.testing.bucket_files import files_below
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TopicPartition, uuid_to_text
from oracle.cluster_members import Member
from tests.support.bucket_scrub import (
    LOCAL_TIERED_STORAGE,
    Layout,
    live_segments,
    metadata_values_below,
    objects_below,
    scrub,
)
from tests.support.correctness.checker import Anomaly
from tests.support.correctness.history import Operation
from tests.support.correctness.settled_tier import UNFINISHED_UPLOAD, TierFindings, holes
from tests.support.correctness.workload import COPIES, EVENTS, FORGETTING, PARTITIONS

COMPARED = (
    EVENTS,
    COPIES,
    FORGETTING,
    REMOTE_LOG_METADATA_TOPIC,
    "__consumer_offsets",
    "__transaction_state",
)
_NOTHING: Mapping[TopicPartition, Collection[Offset]] = MappingProxyType({})
_SCRUBBED = {"leaked": "leaked-object", "missing": "missing-object", "damaged": "damaged-object"}
_LOOK_S = 0.5
_QUIET_LOOKS = 6
_READS_MAX = 100


def await_in_sync(servers: str, clock: Clock, *, timeout_s: float) -> list[Anomaly]:
    """Wait for leaders and full ISRs; return the partitions that lack them when time is up."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline_s = clock.monotonic_s() + timeout_s
    while True:
        late = []
        try:
            topics = admin.list_topics(timeout=10).topics
        except KafkaException as error:
            late.append(f"no metadata: {error}")
        else:
            late += [
                f"{name}-{number} leader={each.leader} isr={sorted(each.isrs)}"
                f" replicas={sorted(each.replicas)}"
                for name, topic in topics.items()
                for number, each in topic.partitions.items()
                if each.leader < 0 or {*each.isrs} != {*each.replicas}
            ]
        if not late or clock.monotonic_s() > deadline_s:
            return [Anomaly("not-in-sync", each) for each in late]
        clock.wait(threading.Event(), _LOOK_S)


def await_published(
    settings: ObjectStoreSettings, clock: Clock, *, timeout_s: float
) -> list[Anomaly]:
    """Wait until the leaders have ended all erasures; return those that are left when time is
    up."""
    deadline_s = clock.monotonic_s() + timeout_s
    while True:
        left = open_journals(settings).list_runs()
        if not left or clock.monotonic_s() > deadline_s:
            return [Anomaly("unsettled", f"{run.partition} run={run.run}") for run in left]
        clock.wait(threading.Event(), _LOOK_S)


def await_quiet(bucket: Path, clock: Clock, *, timeout_s: float) -> list[Anomaly]:
    """Return once the bucket has stayed the same for a while, since copies are then over."""
    deadline_s = clock.monotonic_s() + timeout_s
    before: frozenset[Path] = frozenset()
    quiet = 0
    while quiet < _QUIET_LOOKS and clock.monotonic_s() < deadline_s:
        clock.wait(threading.Event(), _LOOK_S)
        now = frozenset(files_below(bucket))
        quiet, before = (quiet + 1 if now == before else 0), now
    return [] if quiet >= _QUIET_LOOKS else [Anomaly("unsettled", f"seconds={timeout_s}")]


def await_equal_replicas(
    members: Mapping[int, Member], clock: Clock, *, timeout_s: float
) -> list[Anomaly]:
    """Wait until the replicas' `.log` files are equal; return the differences if time is up."""
    deadline_s = clock.monotonic_s() + timeout_s
    while True:
        found = list(_unequal_replicas(members))
        if not found or clock.monotonic_s() > deadline_s:
            return found
        clock.wait(threading.Event(), _LOOK_S)


def _unequal_replicas(members: Mapping[int, Member]) -> Iterator[Anomaly]:
    replicas: dict[str, dict[int, Path]] = defaultdict(dict)
    for node_id, member in members.items():
        for topic in COMPARED:
            for folder in member.data_dir.glob(f"{topic}-[0-9]*"):
                replicas[folder.name][node_id] = folder
    for name, folders in sorted(replicas.items()):
        logs = {node_id: read_log(folder) for node_id, folder in folders.items()}
        yield from (
            Anomaly("unequal-replicas", f"{name} {difference}") for difference in differences(logs)
        )


class LocalLog(NamedTuple):
    """The content of a partition's local segments at one moment. `files` are by name, in order."""

    files: Mapping[str, bytes]

    @property
    def start(self) -> Offset:
        """The base offset of the first segment, which may have no batches."""
        return min((int(name.removesuffix(".log")) for name in self.files), default=0)

    @property
    def batches(self) -> dict[Offset, bytes]:
        """The bytes of each batch, by base offset."""
        return {
            header.base_offset: content[position : position + header.size_in_bytes]
            for content in self.files.values()
            for position, header in iterate_batches(content)
        }


def read_log(folder: Path) -> LocalLog:
    """Read a partition's segments. TimeoutError if files vanish during every attempt."""
    for _ in range(_READS_MAX):
        try:
            return LocalLog({path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))})
        except FileNotFoundError:
            continue  # retention removed a segment during the read: the result would have a hole
    raise TimeoutError(f"segments vanish while they are read folder={folder} reads={_READS_MAX}")


def settled_logs(
    folders: Mapping[int, Path], clock: Clock, *, timeout_s: float
) -> tuple[Mapping[int, LocalLog], list[str]]:
    """The logs of a partition's replicas, and their differences.

    Each is read at another moment, and retention may run in between. So they are read repeatedly,
    until they are equal, or their differences have stayed the same for a while, or time is up.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    before: Mapping[int, LocalLog] = {}
    quiet = 0
    while True:
        logs = {node_id: read_log(folder) for node_id, folder in folders.items()}
        found = list(differences(logs))
        quiet, before = (quiet + 1 if logs == before else 0), logs
        if not found or quiet >= _QUIET_LOOKS or clock.monotonic_s() > deadline_s:
            return logs, found
        clock.wait(threading.Event(), _LOOK_S)


def differences(logs: Mapping[int, LocalLog]) -> Iterator[str]:
    """Differences between replicas of a partition. Their local logs may start at different offsets,
    but not end at them.
    """
    start = max(log.start for log in logs.values())
    (first, expected), *others = (
        (node_id, {offset: batch for offset, batch in log.batches.items() if offset >= start})
        for node_id, log in logs.items()
    )
    for node_id, found in others:
        for offset in sorted({*expected, *found}):
            if expected.get(offset) != found.get(offset):
                sizes = [len(each.get(offset, b"")) for each in (expected, found)]
                yield f"offset={offset} brokers={first},{node_id} bytes={sizes} from={start}"
                break


def vanished_reads(
    operations: Sequence[Operation],
    final_process: int,
    erased: Mapping[TopicPartition, Collection[Offset]] = _NOTHING,
) -> Iterator[Anomaly]:
    """Records that consumers got below the high watermark, and that were missing at the end, when
    the process `final_process` has read everything; `erased` ones aside."""
    final = {
        (read.partition, read.offset): read.value
        for operation in operations
        if operation.process == final_process
        for poll in operation.polls()
        for read in poll.reads
    }
    for operation in operations:
        for poll in operation.polls():
            for read in poll.reads:
                if read.offset in erased.get(read.partition, ()):
                    continue
                if final.get((read.partition, read.offset)) != read.value:
                    yield Anomaly(
                        "vanished-read",
                        f"{read.partition}@{read.offset} value={read.value}"
                        f" process={operation.process}"
                        f" now={final.get((read.partition, read.offset))}",
                    )


def check_tier(
    members: Mapping[int, Member],
    bucket: Path,
    layout: Layout = LOCAL_TIERED_STORAGE,
    erased: Mapping[TopicPartition, Collection[Offset]] = _NOTHING,
) -> TierFindings:
    """Compare the bucket with every idle broker's metadata, and both tiers of each broker with
    each other. `erased` has the offsets that no batch need cover.
    """
    held = objects_below(bucket)
    objects = {name: held[name] for name in held if not UNFINISHED_UPLOAD.fullmatch(name)}
    anomalies: list[Anomaly] = []
    sound = 0
    for node_id, member in members.items():
        values = metadata_values_below(member.data_dir)
        for finding in scrub(objects, values, layout):
            kind, _, detail = finding.partition(" ")
            anomalies.append(Anomaly(_SCRUBBED[kind], f"{detail} broker={node_id}"))
        finished = {
            uuid_to_text(segment): metadata
            for segment, metadata in live_segments(values).items()
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        }
        sound = max(sound, len(finished))
        contents: dict[TopicPartition, list[bytes]] = defaultdict(list)
        for name, content in objects.items():
            metadata = finished.get(name[:-4][-22:]) if name.endswith(".log") else None
            if metadata is not None:
                place = metadata.topic_id_partition
                contents[TopicPartition(place.topic, place.partition)].append(content)
        for topic, count in PARTITIONS.items():
            for number in range(count):
                local = [*(member.data_dir / f"{topic}-{number}").glob("*.log")]
                if local:
                    partition = TopicPartition(topic, number)
                    both = [*contents[partition], *(path.read_bytes() for path in local)]
                    for name, detail in holes(partition, 0, both, erased.get(partition, ())):
                        anomalies.append(Anomaly(name, f"{detail} broker={node_id}"))
    return TierFindings(anomalies, sound, 0, len(held) - len(objects))
