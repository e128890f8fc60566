"""What the console says about a fault that was injected into a real broker, its disk or its bucket.

`isotherm top` and `isotherm topics describe-storage` must say the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.clock import SystemClock
from isotherm.console.topic_answers import storage_problems, topic_answers, topic_problems
from isotherm.console.watched_cluster import WatchedCluster
from isotherm.console.watched_metrics import MetricsLook, WatchedMetrics, metrics_addresses
from isotherm.errors import BrokerUnreachableError
from isotherm.remote.metadata.topic.metadata_partition_reader import MetadataPartitionReader
from isotherm.remote.segment_metadata import LogSegmentData, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.storage_view.cluster_storage import ClusterStorage, StorageReader
from isotherm.storage_view.copy_signs import CopySigns
from isotherm.storage_view.prices import price_list
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.s3_stub import S3Stub, WireFault

TURNS_MAX = 6000
WORDY = "wordy"
BOTH_TIERS = {**TIERED_TOPIC, "local.retention.bytes": "-2"}
METRICS = {"prometheus.listener": "127.0.0.1:0"}
pytestmark = pytest.mark.slow

Said = tuple[ClusterStorage, MetricsLook]


class WordyStore(ObjectStoreRemoteStorageManager):
    """Returns more custom metadata for the segments of WORDY than a broker takes by default."""

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        super().copy_log_segment_data(metadata, data)
        return b"x" * 129 if metadata.topic_id_partition.topic == WORDY else None

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        super().delete_log_segment_data(replace(metadata, custom_metadata=None))


class Watched:
    """A broker, and what the console reads from it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.url = f"http://127.0.0.1:{broker.node.metrics_port}/metrics"
        self.metrics = WatchedMetrics(metrics_addresses([self.url], None), SystemClock(), 0)
        self.metrics.look()
        self.reader = StorageReader(self.client, SystemClock())

    def close(self) -> None:
        self.reader.close()
        self.metrics.close()

    def create(self, topic: str, partitions: int = 1) -> None:
        admin = AdminClient(self.client)
        admin.create_topics([NewTopic(topic, partitions, 1, config=BOTH_TIERS)])[topic].result()

    def configure(self, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient(self.client)
        admin.incremental_alter_configs([resource])[resource].result()

    def produce(self, topic: str, records: int, partitions: int = 1) -> None:
        producer = Producer({**self.client, "batch.size": 20_000})
        for number in range(records):
            producer.produce(topic, os.urandom(1000), partition=number % partitions)
            producer.poll(0)
        assert producer.flush() == 0

    def wait(self, is_reached: Callable[[ClusterStorage, MetricsLook], bool]) -> Said:
        pause = threading.Event()
        for _ in range(TURNS_MAX):
            storage, look = self.reader.read(), self.metrics.look()
            assert look is not None
            if is_reached(storage, look):
                return storage, look
            pause.wait(0.05)
        raise AssertionError(f"not reached: {look.copy_signs} {look.errors}")

    def wait_copied(self, topic: str) -> Said:
        return self.wait(
            lambda storage, look: (
                storage.topics[topic].sums.overlap_bytes == sum(self.sizes(topic)[:-1]) > 0
                and look.copy_signs[topic].lag_bytes == 0
            )
        )

    def sizes(self, topic: str) -> list[int]:
        logs = (self.broker.directory / "log" / f"{topic}-0").glob("*.log")
        return [log.stat().st_size for log in sorted(logs)]

    def printed(self, *command: str) -> str:
        where = ["-b", self.broker.bootstrap_servers, "--metrics", self.url]
        result = CliRunner().invoke(app, [*command, *where])
        assert result.exit_code == 0, result.output
        return result.stdout

    def check_problem(self, said: Said, topic: str, cause: str, *words: str) -> None:
        """All places name this problem of the topic, first of all, and no other."""
        storage, look = said
        everywhere = [
            *storage_problems(storage, look.copy_signs),
            *topic_problems(storage.topics[topic], storage.read_at_ms, look.copy_signs),
        ]
        closed = sum(self.sizes(topic)[:-1])
        assert [(each["topic"], each["cause"], each["bytes"]) for each in everywhere] == [
            (topic, cause, closed)
        ] * 2
        assert answer(said, topic)["holds"][0]["cause"] == cause
        texts = [*(each["text"] for each in everywhere), answer(said, topic)["holds"][0]["remedy"]]
        texts += [self.printed("top", "--once"), self.printed("topics", "describe-storage", topic)]
        for text in texts:
            assert all(word in text for word in words), text
        assert all(f"{topic}, {cause}, " in text for text in texts[-2:])


def answer(said: Said, topic: str) -> dict[str, Any]:
    storage, look = said
    return answer_of(storage, look.copy_signs, topic)


def answer_of(storage: ClusterStorage, signs: dict[str, CopySigns] | Any, topic: str) -> Any:
    answers = topic_answers(storage, price_list("1"), "", signs)
    return next(each for each in answers["topics"] if each["topic"] == topic)


def causes(said: Said, topic: str) -> list[tuple[str, int]]:
    return [(hold["cause"], hold["bytes"]) for hold in answer(said, topic)["holds"]]


def problems(said: Said) -> list[dict[str, Any]]:
    storage, look = said
    return storage_problems(storage, look.copy_signs)


def signs(look: MetricsLook, topic: str) -> CopySigns:
    return look.copy_signs.get(topic, CopySigns())


@contextmanager
def watched(directory: Path, settings: dict[str, str], **options: Any) -> Iterator[Watched]:
    with (
        EmbeddedBroker(directory, {**METRICS, **settings}, **options) as broker,
        closing(Watched(broker)) as seen,
    ):
        yield seen


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub() as served:
        yield served


@pytest.fixture(scope="module")
def shared(stub: S3Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    settings = {f"rsm.config.{key}": value for key, value in stub.config.items()}
    store = {
        "remote.log.storage.manager.class.name": f"{__name__}.{WordyStore.__qualname__}",
    }
    with watched(tmp_path_factory.mktemp("shared") / "broker", settings | store) as seen:
        yield seen


@pytest.mark.parametrize(
    ("topic", "fault", "reason"),
    [
        ("away", None, "connection refused"),
        ("read-only", WireFault.READ_ONLY, "access denied"),
        ("full", WireFault.FULL, "No space left on device"),
        ("sick", WireFault.INTERNAL_ERROR, "another reason"),
    ],
)
def test_bucket_that_refuses_is_named_with_the_brokers_reason(
    shared: Watched, stub: S3Stub, topic: str, fault: WireFault | None, reason: str
) -> None:
    shared.create(topic)
    if fault is None:
        stub.refuse()
    # Connections that are open already end, and new ones are refused.
    stub.fail(fault or WireFault.RESET_BEFORE, "PUT")
    try:
        shared.produce(topic, 2500)
        said = shared.wait(
            lambda _, look: (
                signs(look, topic).store_reasons == [reason]
                and signs(look, topic).lag_bytes == sum(shared.sizes(topic)[:-1]) > 0
            )
        )
        shared.check_problem(said, topic, "copies fail", f"broker's reason: {reason}")
    finally:
        if fault is None:
            stub.accept()
        stub.heal()
    # The failures are a moment old, but nothing is late any more.
    healed = shared.wait_copied(topic)
    assert problems(healed) == []
    assert signs(healed[1], topic).store_reasons == []
    assert healed[0].topics[topic].sums.copy_lag_bytes == 0


def test_slow_bucket_is_no_failure(shared: Watched, stub: S3Stub) -> None:
    shared.create("slow")
    # The broker tells what waits at the beginning of a copy: all of it is there before the first.
    shared.configure("slow", "remote.log.copy.disable", "true")
    shared.produce("slow", 3500)
    stub.fail(WireFault.HELD, "PUT")
    try:
        shared.configure("slow", "remote.log.copy.disable", "false")
        first, *others, active = shared.sizes("slow")
        said = shared.wait(
            lambda storage, look: (
                storage.topics["slow"].sums.copying_segments == 1
                and signs(look, "slow").lag_bytes == first + sum(others)
            )
        )
        assert sorted(causes(said, "slow")) == sorted(
            [
                ("being copied", first),
                ("copying is behind", sum(others)),
                ("active segment", active),
            ]
        )
        waits = next(
            each for each in answer(said, "slow")["holds"] if each["cause"] == "copying is behind"
        )
        assert "the bucket or the copier is slower" in waits["remedy"]
        assert problems(said) == []
    finally:
        stub.heal()
    assert problems(shared.wait_copied("slow")) == []


def test_partition_whose_custom_metadata_is_too_large_has_halted(shared: Watched) -> None:
    shared.create(WORDY)
    shared.produce(WORDY, 2500)
    said = shared.wait(
        lambda _, look: (
            signs(look, WORDY).halted_partitions == 1
            and signs(look, WORDY).lag_bytes == sum(shared.sizes(WORDY)[:-1]) > 0
        )
    )
    shared.check_problem(
        said, WORDY, "copying has halted", "remote.log.metadata.custom.metadata.max.bytes"
    )
    admin = AdminClient(shared.client)
    admin.delete_topics([WORDY])[WORDY].result()
    shared.wait(lambda storage, _: WORDY not in storage.topics)


def test_topic_without_traffic_lags_in_nothing(shared: Watched) -> None:
    shared.create("idle")
    shared.produce("idle", 500)
    said = shared.wait(lambda storage, _: storage.topics["idle"].sums.local_bytes > 0)
    sums = said[0].topics["idle"].sums
    assert (sums.copy_lag_bytes, sums.copy_lag_offsets, sums.copy_lag_s) == (0, 0, 0)
    assert [cause for cause, _ in causes(said, "idle")] == ["active segment"]
    line = next(
        line for line in shared.printed("top", "--once").splitlines() if line.startswith(" idle")
    )
    assert "0 B" in line


def test_bucket_that_is_gone_is_told_from_a_lag_with_metrics_alone(tmp_path: Path) -> None:
    with watched(tmp_path / "broker", {}) as seen:
        seen.create("events")
        bucket, away = seen.broker.directory / "bucket", seen.broker.directory / "away"
        bucket.rename(away)
        bucket.write_text("no folder: nothing can be stored in it")
        seen.produce("events", 4000)

        def is_at_rest(storage: ClusterStorage) -> bool:
            """No copy is under way: those that have failed left nothing behind."""
            holds = answer_of(storage, {}, "events")["holds"]
            return {hold["cause"] for hold in holds} == {"copying is behind", "active segment"}

        # Copies fail while the records come, too.
        said = seen.wait(
            lambda storage, look: (
                signs(look, "events").failures >= 2
                and signs(look, "events").lag_bytes == sum(seen.sizes("events")[:-1])
                and is_at_rest(storage)
            )
        )
        (problem,) = problems(said)
        *closed, active = seen.sizes("events")
        assert (problem["topic"], problem["cause"], problem["bytes"]) == (
            "events",
            "copies fail",
            sum(closed),
        )
        assert causes(said, "events") == [("copies fail", sum(closed)), ("active segment", active)]
        # Without metrics the page says that it cannot tell.
        without = answer_of(said[0], {}, "events")
        waits = next(each for each in without["holds"] if each["cause"] == "copying is behind")
        assert "or each copy fails" in waits["remedy"]

        bucket.unlink()
        away.rename(bucket)
        healed = seen.wait_copied("events")
        assert problems(healed) == []
        assert healed[0].topics["events"].sums.copy_lag_bytes == 0


def test_disk_that_fails_takes_its_partitions_and_their_metadata_away(tmp_path: Path) -> None:
    """Partitions on the sound disk whose metadata was on the other have unknown segments: nothing
    of them is missing."""
    fs, disks = FaultyFileSystem(), [tmp_path / "first", tmp_path / "second"]
    settings = {
        "log.dirs": ",".join(map(str, disks)),
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    }
    partitions = 8
    with watched(tmp_path / "broker", settings, fs=fs) as seen:
        seen.create("t", partitions)
        seen.produce("t", 1500 * partitions, partitions)
        seen.wait(lambda storage, _: storage.topics["t"].sums.remote_segments >= partitions)
    lost_metadata = [path.name for path in disks[1].glob("__remote_log_metadata-*")]
    assert len(lost_metadata) == 1
    fs.fail(disks[1])
    with watched(tmp_path / "broker", settings, fs=fs) as seen:
        said = seen.wait(lambda _, look: signs(look, "t").is_metadata_unread)
        rows = topic_problems(said[0].topics["t"], said[0].read_at_ms, said[1].copy_signs)
        texts = {row["text"] for row in rows}
        assert {row["cause"] for row in rows} == {"partitions do not answer"}
        assert any("log directory that cannot be used" in text for text in texts)
        assert any(f"{lost_metadata[0]} has no leader" in text for text in texts)
        for partition in said[0].topics["t"].partitions:
            on_second = (disks[1] / f"t-{partition.state.partition.partition}").exists()
            if on_second:
                assert "log directory that cannot be used" in str(partition.state.error)
            elif partition.sums is not None:
                assert partition.sums.missing_offsets == 0
        assert said[0].topics["t"].sums.missing_offsets == 0
        printed = seen.printed("top", "--once")
        assert "log directory that cannot be used" in printed
        assert f"{lost_metadata[0]} has no leader" in printed


def test_leader_that_still_reads_its_metadata_copies_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path / "broker", {}) as seen:
        seen.create("t")
        seen.produce("t", 2500)
        seen.wait_copied("t")
    with monkeypatch.context() as stalled:
        # It neither reads nor fails, as one that has much to read.
        stalled.setattr(MetadataPartitionReader, "poll", lambda *_, **__: False)
        with watched(tmp_path / "broker", {}) as seen:
            seen.produce("t", 2500)
            said = seen.wait(lambda _, look: signs(look, "t").is_metadata_unread)
            (problem,) = problems(said)
            assert (problem["topic"], problem["cause"]) == ("t", "metadata is not read yet")
            assert "__remote_log_metadata" in problem["text"]
            assert "metadata is not read yet" in seen.printed("top", "--once")
            assert "metadata is not read yet" in seen.printed("topics", "describe-storage", "t")
    with watched(tmp_path / "broker", {}) as seen:
        assert problems(seen.wait_copied("t")) == []


def test_broker_that_is_down_leaves_the_last_numbers_and_the_reason(tmp_path: Path) -> None:
    clock = SystemClock()
    with EmbeddedBroker(tmp_path / "broker", METRICS) as broker:
        seen = Watched(broker)
        seen.create("t")
        seen.produce("t", 100)
        cluster = WatchedCluster(lambda: StorageReader(seen.client, clock), clock, 0)
        assert cluster.look().error is None
        seen.close()
    with closing(cluster):
        look = cluster.look()
        assert look.content is not None
        assert look.content.topics["t"].sums.local_bytes > 0
        assert seen.broker.bootstrap_servers in str(look.error)
    result = CliRunner().invoke(app, ["top", "--once", "-b", broker.bootstrap_servers])
    assert isinstance(result.exception, BrokerUnreachableError)
