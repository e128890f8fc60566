"""Measures the table of docs/cluster.md: acts on a leader, by the kinds of a partition's replicas.

    python -m tests.support.cluster.placements [--brokers III IKK ...] [--acts kill wipe ...]

A placement is a cluster of three brokers; its first letter is the leader's kind (I: Isotherm, K:
Apache Kafka). In each, a topic per act, of one partition with three replicas in the remote tier, is
written to with acks=all while the act happens to its leader. Once all is at rest, what was
acknowledged is compared record by record with what a consumer reads, with what Kafka's
DumpLogSegments finds in every replica's local log, and with what it finds in the bucket; and the
bucket is scrubbed. Exit status: 0 if all held.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.clock import Clock, SystemClock
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.types import Offset, uuid_to_text
from oracle.cluster_members import IsothermMember
from oracle.dump_text import parse_dump
from oracle.kafka import dump_log_segments, run_tool
from oracle.topics import wait_until
from tests.support.bucket_scrub import (
    LOCAL_TIERED_STORAGE,
    live_segments,
    metadata_values_below,
    objects_below,
    scrub,
)
from tests.support.cluster.links import Links
from tests.support.cluster.members import LinkedCluster
from tests.support.cluster.replicas import (
    await_in_sync,
    await_quiet,
    settled_logs,
)
from tests.support.correctness.settled_tier import UNFINISHED_UPLOAD
from tests.support.correctness.workload import decode_value, encode_value

PLACEMENTS: Final = ("III", "IKK", "KII", "IIK", "KKI")
LEADER: Final = 1
PATIENCE_S: Final = 300
PAUSE_S: Final = 8.0
"""Longer than a session."""
AWAY_S: Final = 2.0
TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "min.insync.replicas": "2",
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "internal.segment.bytes": "65536",
    "file.delete.delay.ms": "100",
}
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_WRITE_PAUSE_S = 0.005


class Stage:
    """A running cluster, and acts on the broker LEADER. Not thread-safe."""

    def __init__(self, cluster: LinkedCluster, directory: Path, clock: Clock) -> None:
        self.cluster = cluster
        self.directory = directory
        self.clock = clock
        self.admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})

    def rest(self, seconds: float) -> None:
        self.clock.wait(threading.Event(), seconds)

    def leader(self, topic: str) -> int:
        """The leader of a topic; -1 without one, or while no broker answers."""
        try:
            found = self.admin.list_topics(topic, timeout=10).topics[topic]
        except KafkaException:
            return -1
        return int(found.partitions[0].leader) if found.partitions else -1

    def await_leader(self, topic: str, is_wanted: Callable[[int], bool]) -> None:
        wait_until(lambda: is_wanted(self.leader(topic)), f"a leader of {topic}", PATIENCE_S)

    def elect_preferred(self, topic: str, node_id: int) -> None:
        def elected() -> bool:
            partition = ClientPartition(topic, 0)
            try:
                self.admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(300)
            except KafkaException:
                return False
            return self.leader(topic) == node_id

        wait_until(elected, f"{node_id} leads {topic}", PATIENCE_S)

    def reassign(self, topic: str, replicas: Sequence[int]) -> None:
        """Reassign with Kafka's own tool; return once the topic has these replicas, all in sync."""
        plan = self.directory / "plan.json"
        partition = {"topic": topic, "partition": 0, "replicas": list(replicas)}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        run_tool(_REASSIGN, "--bootstrap-server", self.cluster.servers, "--execute",
                 "--reassignment-json-file", plan, timeout_s=PATIENCE_S)  # fmt: skip

        def is_done() -> bool:
            found = self.admin.list_topics(topic, timeout=300).topics[topic].partitions[0]
            return list(found.replicas) == list(replicas) and {*found.isrs} == {*replicas}

        wait_until(is_done, f"{topic} on {replicas}", PATIENCE_S)


def kill(stage: Stage, topic: str) -> None:
    stage.cluster.members[LEADER].kill()
    stage.await_leader(topic, lambda leader: leader not in (-1, LEADER))
    stage.rest(AWAY_S)
    stage.cluster.start_member(LEADER)


def pause(stage: Stage, topic: str) -> None:
    stage.cluster.pause(LEADER)
    stage.rest(PAUSE_S)
    stage.cluster.resume(LEADER)


def clean_stop(stage: Stage, topic: str) -> None:
    stage.cluster.members[LEADER].stop()
    stage.rest(AWAY_S)
    stage.cluster.start_member(LEADER)


def wipe(stage: Stage, topic: str) -> None:
    """Delete the leader's disk: its copied segments then exist in the bucket alone."""
    member = stage.cluster.members[LEADER]
    member.kill()
    shutil.rmtree(member.data_dir)
    stage.await_leader(topic, lambda leader: leader not in (-1, LEADER))
    if isinstance(member, IsothermMember):
        member.format()
    stage.cluster.start_member(LEADER)


def reassign(stage: Stage, topic: str) -> None:
    """Remove the leader's replica, and add it again."""
    stage.reassign(topic, [2, 3])
    stage.rest(AWAY_S)
    stage.reassign(topic, [LEADER, 2, 3])


def move(stage: Stage, topic: str) -> None:
    """Move the leadership while segments are copied, and move it back."""
    stage.reassign(topic, [2, LEADER, 3])
    stage.elect_preferred(topic, 2)
    stage.rest(AWAY_S)
    stage.reassign(topic, [LEADER, 2, 3])


ACTS: Final[Mapping[str, tuple[str, Callable[[Stage, str], None]]]] = {
    "kill": ("leader killed", kill),
    "pause": ("leader paused, longer than its session", pause),
    "stop": ("leader stopped in order", clean_stop),
    "wipe": ("leader killed, its disk wiped", wipe),
    "reassign": ("reassigned away from the leader, and back", reassign),
    "move": ("leadership moved while segments are copied, and back", move),
}


class Writer:
    """Writes numbers in order until `finish`, with an idempotent producer and acks=all."""

    def __init__(self, servers: str, topic: str, clock: Clock) -> None:
        self.acknowledged: dict[Offset, int] = {}
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 20,
                # A batch has to fit into a segment.
                "batch.size": 16384,
                "message.timeout.ms": PATIENCE_S * 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop writing; return when every record is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()
        if self._producer.flush(PATIENCE_S):
            self.failed.append("not delivered in time")

    def await_acknowledged(self, count: int) -> None:
        wait_until(lambda: len(self.acknowledged) >= count, f"{count} records", PATIENCE_S)

    def _write(self) -> None:
        number = 0
        while not self._clock.wait(self._stopping, _WRITE_PAUSE_S):
            self._producer.poll(0)
            try:
                value = encode_value(number)
                self._producer.produce(
                    self._topic, value, partition=0, on_delivery=self._taker(number)
                )
            except BufferError:
                continue
            number += 1

    def _taker(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def take(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self.failed.append("no offset" if error is None else error.name())
            else:
                self.acknowledged[offset] = number

        return take


def run_cell(stage: Stage, topic: str, act: Callable[[Stage, str], None]) -> tuple[str, list[str]]:
    """Run one act on a new topic; return a summary of the comparison, and the problems."""
    created = stage.admin.create_topics(
        [NewTopic(topic, 1, replica_assignment=[[1, 2, 3]], config=dict(TOPIC_CONFIG))]
    )
    created[topic].result(300)
    stage.await_leader(topic, lambda leader: leader == LEADER)
    writer = Writer(stage.cluster.servers, topic, stage.clock)
    writer.await_acknowledged(300)
    act(stage, topic)
    writer.await_acknowledged(len(writer.acknowledged) + 300)
    writer.finish()
    problems = [f"not acknowledged: {each}" for each in writer.failed]
    in_sync = await_in_sync(stage.cluster.servers, stage.clock, timeout_s=PATIENCE_S)
    problems += [each.detail for each in in_sync]
    stage.elect_preferred(topic, LEADER)
    unsettled = await_quiet(stage.cluster.bucket, stage.clock, timeout_s=PATIENCE_S)
    problems += [each.name for each in unsettled]
    written = writer.acknowledged
    problems += _compare("a consumer", written, _consumed(stage.cluster.servers, topic))
    problems += _check_replicas(stage, topic, written)
    print(f"{topic}: {len(written)} records, problems={problems[:3]}", file=sys.stderr)
    segments, copiers, found = _check_bucket(stage.cluster, topic, written)
    problems += found
    return f"{len(written)} records, {segments} segments of {copiers}", problems


def _compare(
    where: str, written: Mapping[Offset, int], found: Mapping[Offset, int], start: Offset = 0
) -> list[str]:
    expected = {offset: number for offset, number in written.items() if offset >= start}
    wrong = sorted(
        offset
        for offset in expected.keys() | found.keys()
        if expected.get(offset) != found.get(offset)
    )
    return [f"{where} differs at {len(wrong)} offsets, the first {wrong[0]}"] if wrong else []


def _consumed(servers: str, topic: str) -> dict[Offset, int]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([ClientPartition(topic, 0, 0)])
    found: dict[Offset, int] = {}

    def is_read() -> bool:
        for message in consumer.consume(1000, 1.0):
            error, offset = message.error(), message.offset()
            if error is None and offset is not None:
                found[offset] = decode_value(message.value())
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                return True
        return False

    wait_until(is_read, f"the end of {topic}", PATIENCE_S)
    consumer.close()
    return found


def _check_replicas(stage: Stage, topic: str, written: Mapping[Offset, int]) -> list[str]:
    """Compare the replicas' logs, each read once: local retention may delete segments meanwhile."""
    folders = {
        node_id: member.data_dir / f"{topic}-0" for node_id, member in stage.cluster.members.items()
    }
    logs, found = settled_logs(folders, stage.clock, timeout_s=PATIENCE_S)
    problems = [f"replicas differ: {each}" for each in found]
    for node_id, log in logs.items():
        if not log.files:
            problems.append(f"broker {node_id} has no log of {topic}")
        with tempfile.TemporaryDirectory() as folder:
            for name, content in log.files.items():
                (Path(folder) / name).write_bytes(content)
            dumped, remarks = _dumped(sorted(Path(folder).iterdir()))
        problems += remarks
        problems += _compare(f"the log of broker {node_id}", written, dumped, log.start)
    return problems


def _check_bucket(
    cluster: LinkedCluster, topic: str, written: Mapping[Offset, int]
) -> tuple[int, str, list[str]]:
    """The number of finished segments, the brokers that copied them, and the problems."""
    values = metadata_values_below(cluster.members[LEADER].data_dir)
    objects = {
        name: content
        for name, content in objects_below(cluster.bucket).items()
        if not UNFINISHED_UPLOAD.fullmatch(name)
    }
    problems = [f"scrub: {each}" for each in scrub(objects, values, LOCAL_TIERED_STORAGE)]
    finished = [
        segment
        for segment in live_segments(values).values()
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and segment.topic_id_partition.topic == topic
    ]
    texts = {uuid_to_text(segment.segment_id.id) for segment in finished}
    logs = sorted(
        path
        for path in cluster.bucket.glob(f"kafka-tiered-storage/{topic}-0-*/*.log")
        if path.stem[-22:] in texts
    )
    dumped, remarks = _dumped(logs)
    problems += remarks
    end = max((each.end_offset_inclusive for each in finished), default=-1)
    copied = {offset: number for offset, number in written.items() if offset <= end}
    problems += _compare("the bucket", copied, {o: n for o, n in dumped.items() if o <= end})
    copiers = " and ".join(
        str(broker) for broker in sorted({broker.broker_id for broker in finished})
    )
    return len(finished), copiers, problems


def _dumped(files: Iterable[Path]) -> tuple[dict[Offset, int], list[str]]:
    """The records of Kafka's DumpLogSegments, and its complaints."""
    logs = list(files)
    if not logs:
        return {}, []
    found: dict[Offset, int] = {}
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        # The tool demands a base offset as the file's name, and two segments may have the same.
        names = [
            Path(folder) / str(number) / f"{log.name[:20]}.log" for number, log in enumerate(logs)
        ]
        for log, name in zip(logs, names, strict=True):
            name.parent.mkdir()
            name.symlink_to(log.absolute())
        text = dump_log_segments(names, "--deep-iteration", "--print-data-log")
    for file in parse_dump(text).values():
        problems += [f"DumpLogSegments {file.name}: {remark}" for remark in file.remarks]
        problems += [
            f"DumpLogSegments {file.name}: {batch}"
            for batch in file.batches
            if batch["isvalid"] != "true"
        ]
        found |= {
            int(record["offset"]): decode_value(record["payload"].encode())
            for record in file.records
        }
    return found, problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--brokers", nargs="+", default=list(PLACEMENTS))
    parser.add_argument("--acts", nargs="+", choices=list(ACTS), default=list(ACTS))
    parser.add_argument("--directory", type=Path, help="default: a new temporary one")
    chosen = parser.parse_args(arguments)
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="isotherm-placements-"))
    cells: dict[tuple[str, str], str] = {}
    failed = 0
    for brokers in chosen.brokers:
        folder = directory / brokers
        with Links() as links:
            cluster = LinkedCluster(folder, brokers, links)
            try:
                cluster.start()
                for act in chosen.acts:
                    stage = Stage(cluster, folder, SystemClock())
                    outcome, problems = run_cell(stage, act, ACTS[act][1])
                    cells[act, brokers] = f"**{problems[0]}**" if problems else outcome
                    failed += bool(problems)
                    print(f"{brokers} {act}: {outcome}", *problems[:5], sep="\n  ", file=sys.stderr)
            finally:
                cluster.close()
    print("| what | " + " | ".join(chosen.brokers) + " |")
    print("|---" * (1 + len(chosen.brokers)) + "|")
    for act in chosen.acts:
        row = [cells[act, brokers] for brokers in chosen.brokers]
        print(f"| {ACTS[act][0]} | " + " | ".join(row) + " |")
    if not failed and chosen.directory is None:
        shutil.rmtree(directory)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
