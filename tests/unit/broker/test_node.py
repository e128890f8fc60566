"""Start and stop of a whole broker: their order, what prevents them, what they leave behind."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.node import BrokerNode
from isotherm.broker.startup.identity import agreed_cluster_id, establish_identity
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.config.broker import BrokerConfig
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError, IsothermError, LogDirFailedError
from isotherm.log.checkpoints import MetaProperties
from isotherm.log.log_dir import LogDir
from isotherm.record.batch import build_batch
from isotherm.record.validation import AppendOrigin
from isotherm.testing.sim_clock import SimClock
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC
from tests.support.faulty_fs import FaultyFileSystem


def config(directory: Path, **settings: str) -> BrokerConfig:
    return parse_broker_config(
        {
            **embedded_defaults(directory, {}),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )


def start_and_stop(*nodes: BrokerNode) -> None:
    """Start all nodes in order, then stop them in reverse order."""

    async def scenario() -> None:
        started = []
        try:
            for node in nodes:
                await node.start()
                started.append(node)
        finally:
            for node in reversed(started):
                await node.stop()

    asyncio.run(scenario())


def test_stop_leaves_a_clean_folder_that_can_be_opened_again(tmp_path: Path) -> None:
    first, second = BrokerNode(config(tmp_path)), BrokerNode(config(tmp_path))
    start_and_stop(first)
    names = {path.name for path in (tmp_path / "log").iterdir()}
    assert {
        ".kafka_cleanshutdown",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "__cluster_metadata-0",
        f"{REMOTE_LOG_METADATA_TOPIC}-1",
    } <= names
    start_and_stop(second)
    assert second.services.cluster_id == first.services.cluster_id


def test_start_without_a_directory_keeps_what_may_be_in_it_offline(tmp_path: Path) -> None:
    """A new log in another directory would begin at offset 0 and hide the records."""
    first, second = tmp_path / "first", tmp_path / "second"
    both = config(tmp_path, log_dirs=f"{first},{second}")
    whole = BrokerNode(both)
    start_and_stop(whole)
    in_second = {path.name for path in second.glob("*-*") if path.is_dir()}
    assert in_second
    second.rename(tmp_path / "away")
    second.write_text("not a folder")
    half = BrokerNode(both)
    start_and_stop(half)
    offline = {
        f"{topic.name}-{index}"
        for topic in half.services.replica_manager.topics()
        for index in topic.offline
    }
    assert offline == in_second
    assert not any((first / name).exists() for name in in_second)
    second.unlink()
    (tmp_path / "away").rename(second)
    healed = BrokerNode(both)
    start_and_stop(healed)
    assert not any(topic.offline for topic in healed.services.replica_manager.topics())


def test_every_start_raises_the_leader_epochs_by_one(tmp_path: Path) -> None:
    for epoch in range(3):
        node = BrokerNode(config(tmp_path))
        start_and_stop(node)
        partition = node.services.replica_manager.find_partition(REMOTE_LOG_METADATA_TOPIC, None, 0)
        assert partition.leader_epoch == epoch
        image = node.services.metadata.image.topics_by_name[REMOTE_LOG_METADATA_TOPIC]
        assert image.partitions[0].leader_epoch == epoch


def test_stop_twice_is_harmless(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = BrokerNode(config(tmp_path))
        await node.start()
        await node.stop()
        await node.stop()

    asyncio.run(scenario())


class WriteOrder(FaultyFileSystem):
    """Notes the order of syncs and of files that are replaced as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def write_atomically(self, path: Path, data: Any) -> None:
        super().write_atomically(path, data)
        self.order.append(path.name)

    def sync_file(self, path: Path) -> None:
        super().sync_file(path)
        self.order.append(f"{path.parent.name}/{path.suffix}")


def test_stop_marks_itself_as_clean_after_everything_is_on_disk(tmp_path: Path) -> None:
    fs = WriteOrder()

    async def scenario() -> None:
        node = BrokerNode(config(tmp_path), Surroundings(fs=fs))
        await node.start()
        partition = node.services.replica_manager.find_partition(REMOTE_LOG_METADATA_TOPIC, None, 0)
        partition.append(
            build_batch([(0, None, b"v", ())]),
            required_acks=1,
            now_ms=0,
            origin=AppendOrigin.COORDINATOR,
        )
        fs.order.clear()
        await node.stop()

    asyncio.run(scenario())
    steps = [f"{REMOTE_LOG_METADATA_TOPIC}-0/.log", "recovery-point-offset-checkpoint"]
    found = [fs.order.index(step) for step in (*steps, ".kafka_cleanshutdown")]
    assert found == sorted(found)
    assert fs.order[-1] == ".kafka_cleanshutdown"


def test_same_seed_gives_the_same_ids(tmp_path: Path) -> None:
    ids = []
    for name in ("a", "b"):
        node = BrokerNode(
            config(tmp_path / name), Surroundings(rng=random.Random(5), clock=SimClock())
        )
        start_and_stop(node)
        topic = node.services.metadata.image.topics_by_name[REMOTE_LOG_METADATA_TOPIC]
        ids.append((node.services.cluster_id, topic.topic_id))
    assert ids[0] == ids[1]


def test_folder_in_use_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "log" / ".lock"
    lock.parent.mkdir()
    hold = (
        f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        " print(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LogDirFailedError, match=str(tmp_path / "log")):
            start_and_stop(BrokerNode(config(tmp_path)))
        other.communicate(b"\n")
    start_and_stop(BrokerNode(config(tmp_path)))


def test_taken_port_is_named_and_nothing_is_left_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = BrokerNode(config(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{port}"))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            start_and_stop(node)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rsm.config.url", "nonsense://x"),
        ("rsm.config.no.such.key", "1"),
        ("rlmm.config.no.such.key", "1"),
    ],
)
def test_wrong_remote_setting_is_named_and_the_folder_is_released(
    tmp_path: Path, key: str, value: str
) -> None:
    with pytest.raises(IsothermError, match=key.split(".", 2)[2]):
        start_and_stop(BrokerNode(config(tmp_path, **{key: value})))
    start_and_stop(BrokerNode(config(tmp_path)))


def test_other_partition_count_of_the_metadata_topic_is_refused(tmp_path: Path) -> None:
    start_and_stop(BrokerNode(config(tmp_path)))
    key = "rlmm.config.remote.log.metadata.topic.num.partitions"
    with pytest.raises(ConfigError, match="partitions=2"):
        start_and_stop(BrokerNode(config(tmp_path, **{key: "3"})))


def test_folder_of_another_broker_is_refused(tmp_path: Path) -> None:
    start_and_stop(BrokerNode(config(tmp_path)))
    with pytest.raises(ConfigError, match=r"node_id=1 key=node\.id value=2"):
        start_and_stop(BrokerNode(config(tmp_path, node_id="2")))


def test_broker_without_a_remote_tier_starts(tmp_path: Path) -> None:
    node = BrokerNode(config(tmp_path, **{"remote.log.storage.system.enable": "false"}))
    start_and_stop(node)
    assert node.services.remote_log_manager is None
    assert REMOTE_LOG_METADATA_TOPIC not in node.services.metadata.image.topics_by_name


def test_broker_without_a_remote_tier_does_not_start_over_tiered_topics(tmp_path: Path) -> None:
    """As in Kafka's LogManager: readers would miss the remote records."""

    async def make_topics(node: BrokerNode) -> None:
        await node.start()
        try:
            topics = [
                NewTopic(name=name, configs={"remote.storage.enable": tiered})
                for name, tiered in (("b", "true"), ("a", "true"), ("local", "false"))
            ]
            controller = node.services.controller
            await node.services.run_control(lambda: controller.create_topics(topics))
        finally:
            await node.stop()

    asyncio.run(make_topics(BrokerNode(config(tmp_path))))
    off = config(tmp_path, **{"remote.log.storage.system.enable": "false"})
    with pytest.raises(
        ConfigError, match=r"before tiered storage is disabled.* topics=a,b count=2"
    ):
        start_and_stop(BrokerNode(off))
    start_and_stop(BrokerNode(config(tmp_path)))


def warnings_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, **settings: str) -> list[str]:
    caplog.clear()
    start_and_stop(BrokerNode(config(tmp_path, **settings)))
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "isotherm.broker.tier.remote_metadata_topics"
    ]


TOPIC_KEY = "rlmm.config.remote.log.metadata.topic."
AUDIT_KEY = "rlmm.config.remote.log.metadata.audit.topic."
LEVEL_KEY = "remote.log.metadata.compaction.initial.level"


def test_settings_of_the_metadata_topics_without_effect_are_logged_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(tmp_path, caplog) == []
    replicas = {TOPIC_KEY + "replication.factor": "3", TOPIC_KEY + "min.isr": "2"}
    warned = warnings_of(tmp_path, caplog, **replicas)
    assert [text.partition(" reason=")[0] for text in warned] == [
        f"configuration key has no effect key={name}" for name in replicas
    ]
    assert warnings_of(tmp_path, caplog, **dict.fromkeys(replicas, "1")) == []
    warned = warnings_of(
        tmp_path,
        caplog,
        **{TOPIC_KEY + "retention.ms": "5", AUDIT_KEY + "retention.ms": "6"},
        **{"rlmm.config.remote.log.metadata.consumer.fetch.min.bytes": "1"},
    )
    assert warned == [
        (
            "configuration key has no effect"
            " key=rlmm.config.remote.log.metadata.consumer.fetch.min.bytes"
            " reason=the topic is in process"
        ),
        (
            f"configuration key has no effect key={TOPIC_KEY}retention.ms"
            " reason=the topic is compacted"
        ),
        (
            f"configuration key has no effect key={AUDIT_KEY}retention.ms"
            " reason=the topic exists already, with retention.ms=-1"
        ),
    ]


def test_retention_of_the_metadata_topics_is_that_of_the_settings_when_they_are_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retentions = {TOPIC_KEY + "retention.ms": "500000", AUDIT_KEY + "retention.ms": "600000"}
    keyed = BrokerNode(config(tmp_path / "1", **retentions))
    start_and_stop(keyed)
    audit = keyed.services.metadata.topic_config(REMOTE_LOG_METADATA_AUDIT_TOPIC)
    assert audit.retention_ms == 600_000
    events = BrokerNode(config(tmp_path / "0", **retentions, **{LEVEL_KEY: "0"}))
    start_and_stop(events)
    topic = events.services.metadata.topic_config(REMOTE_LOG_METADATA_TOPIC)
    assert topic.retention_ms == 500_000


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, None),
        ({TOPIC_KEY + "retention.ms": "5000"}, "retention.ms=5000"),
        ({"log.retention.bytes": "70000"}, "retention.bytes=70000"),
    ],
)
def test_metadata_topic_that_loses_events_is_logged_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], warned: str | None
) -> None:
    for _ in range(2):
        texts = warnings_of(tmp_path, caplog, **settings, **{LEVEL_KEY: "0"})
        assert [text.rpartition(" ")[2] for text in texts] == ([warned] if warned else [])
        assert all("metadata topic has finite retention" in text for text in texts)


# Identity


def properties(cluster_id: str = "c", node_id: int = 1) -> MetaProperties:
    return MetaProperties(cluster_id, node_id, "d")


@pytest.mark.slow
def test_plain_broker_is_without_arrow_numba_and_cryptography(tmp_path: Path) -> None:
    script = """
import asyncio, pathlib, sys
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.node import BrokerNode
from isotherm.config.server_properties import parse_broker_config
from isotherm.config.layers import embedded_defaults

async def run():
    settings = embedded_defaults(pathlib.Path(sys.argv[1]), {})
    node = BrokerNode(parse_broker_config({**settings, "listeners": "PLAINTEXT://127.0.0.1:0"}))
    await node.start()
    await node.stop()

asyncio.run(run())
print({"cryptography", "numba", "pyarrow"} & {*sys.modules})
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    for _ in range(2):  # the second start reads what the first one wrote
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ran.stdout == "set()\n"


def test_new_folder_joins_the_cluster_of_the_others(tmp_path: Path) -> None:
    rng = random.Random(7)
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.mkdir()
    fs = FaultyFileSystem()
    first = establish_identity(fs, [LogDir(old)], 1, rng)
    assert establish_identity(fs, [LogDir(old), LogDir(new)], 1, rng) == first
    assert f"cluster.id={first}\n" in (new / "meta.properties").read_text()


def test_folder_that_cannot_be_read_does_not_keep_the_others_from_joining(tmp_path: Path) -> None:
    rng = random.Random(7)
    fs, (good, bad) = FaultyFileSystem(), (LogDir(tmp_path / "good"), LogDir(tmp_path / "bad"))
    good.path.mkdir()
    fs.fail(bad.path)
    establish_identity(fs, [bad, good], 1, rng)
    assert (bad.is_online, good.is_online) == (False, True)
    assert (good.path / "meta.properties").exists()


def test_folders_of_two_clusters_are_refused() -> None:
    found: dict[Path, Any] = {Path("/a"): properties("c"), Path("/b"): properties("other")}
    with pytest.raises(ConfigError, match="cluster_id=other"):
        agreed_cluster_id(found, 1)


def test_folders_without_properties_have_no_cluster() -> None:
    assert agreed_cluster_id({Path("/a"): None}, 1) is None


# Background work


def test_periodic_task_runs_after_its_delay_and_then_at_its_interval() -> None:
    clock = SimClock()
    ran = threading.Semaphore(0)
    task = PeriodicTask("t", ran.release, clock, initial_delay_s=10, interval_s=5)
    task.start()
    clock.await_waiters(1)
    clock.advance(9_999)
    assert not ran.acquire(blocking=False)
    for step_ms in (1, 5_000, 5_000):
        clock.advance(step_ms)
        assert ran.acquire(timeout=300)
        clock.await_waiters(1)
    task.stop()
    clock.advance(60_000)
    assert not ran.acquire(blocking=False)


def test_periodic_task_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimClock()
    ran = threading.Semaphore(0)

    def fail() -> None:
        ran.release()
        raise ZeroDivisionError

    task = PeriodicTask("t", fail, clock, initial_delay_s=0, interval_s=5)
    task.start()
    for _ in range(2):
        assert ran.acquire(timeout=300)
        clock.await_waiters(1)
        clock.advance(5_000)
    assert ran.acquire(timeout=300)
    task.stop()
    assert "task=t" in caplog.text
