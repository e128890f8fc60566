"""Metrics of share groups have the names and values of Kafka's MBeans after the same work."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from oracle.kafka import CHEAP_COMPILER, KafkaOracle
from oracle.tools import run_tools
from tests.support.conditions import wait_until

pytestmark = pytest.mark.oracle

JMX_TOOL = "org.apache.kafka.tools.JmxTool"
COUNT = 30
TIMEOUT_S = 300
# Requests and topics have theirs whatever they are for.
OF_SHARE_GROUPS = re.compile("share", re.IGNORECASE)
OF_ALL = re.compile("topic=.?__share_group_state")
MISSING = {
    "_delayedoperationpurgatory_": "fetches and share fetches wait in one purgatory",
    "_metadataloader_finalizedlevel": "features are described by ApiVersions and Metadata",
    "_node_metrics_": "features are described by ApiVersions and Metadata",
    "_share_coordinator_metrics_(batch|event|thread)_": "of the runtime of Kafka's coordinators",
    "_share_coordinator_metrics_partition_load_time_": "of the runtime of Kafka's coordinators",
    "_share_coordinator_metrics_write_latency_": "a write of this broker is a step of its loop",
}
"""Names that Kafka has alone, as patterns, each with its reason; docs/metrics.md has them, too."""
# As often on both sides. The others depend on when a member asks, on how a client makes batches, or
# on the machine; a broker of Kafka counts its groups some seconds later.
SAME_VALUE = re.compile(
    "recordacknowledgements|sharesession|inflight(?!batchmessage)|locktimeout|failed"
    "|partitionloadtimems|num_partitions"
)


@contextmanager
def member_at_work(servers: str) -> Iterator[None]:
    """A member that has accepted, released and rejected records; the released ones were delivered
    again and accepted."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("tasks", 1)])["tasks"].result(TIMEOUT_S)
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[earliest])
    admin.incremental_alter_configs([group])[group].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(COUNT):
        producer.produce("tasks", b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    settings = {
        "bootstrap.servers": servers,
        "group.id": "workers",
        "share.acknowledgement.mode": "explicit",
    }
    with closing(ShareConsumer(settings)) as worker:
        worker.subscribe(["tasks"])
        done: set[int] = set()

        def all_done() -> bool:
            for task in worker.poll(0.1):
                if task.offset() == 13:
                    worker.acknowledge(task, AcknowledgeType.REJECT)
                elif task.offset() % 10 == 0 and task.delivery_count() == 1:
                    worker.acknowledge(task, AcknowledgeType.RELEASE)
                    continue
                else:
                    worker.acknowledge(task, AcknowledgeType.ACCEPT)
                done.add(task.offset())
            worker.commit_sync()
            return len(done) == COUNT

        wait_until(all_done, "the acknowledgements", timeout_s=TIMEOUT_S)
        yield


def exported(mbean: str, attribute: str, suffix: str) -> str:
    """The name and labels that the JMX exporter's usual rules make of an attribute."""
    domain, _, keys = mbean.partition(":")
    labels = dict(key.split("=", 1) for key in keys.split(","))
    kind, name = labels.pop("type"), labels.pop("name", attribute)
    if kind == "BrokerTopicMetrics":
        labels.setdefault("topic", "")
    name = name.replace("PerSec", "_total").lower()
    text = f"{domain}_{kind.lower()}_{name}{suffix}".replace(".", "_").replace("-", "_")
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{text}{{{shown}}}" if shown else text


def kafkas_metrics(jmx_port: int) -> dict[str, float]:
    """All metrics of a broker of Kafka that have a word about shares, but for those of requests."""
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{jmx_port}/jmxrmi"
    options = ["--one-time", "--report-format", "properties", "--object-name", "kafka.server:*"]
    (printed,) = run_tools([JMX_TOOL, "--jmx-url", url, *options])
    metrics: dict[str, float] = {}
    for line in printed.splitlines():
        match = re.fullmatch(r"(kafka\.server:.*):([\w-]+)=(-?[\d.E-]+)", line)
        if match is None:
            continue
        mbean, attribute, value = match.groups()
        if not OF_SHARE_GROUPS.search(f"{mbean}:{attribute}") or OF_ALL.search(mbean):
            continue
        if ",name=" in mbean and attribute not in ("Value", "Count"):
            continue  # a rate or a quantile of the count
        suffix = "_count" if f"{mbean}:50thPercentile" in printed else ""
        metrics[exported(mbean, attribute, suffix)] = float(value)
    return metrics


def own_metrics(metrics_port: int | None) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    words = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in words}


def test_metrics_of_share_groups_are_those_of_kafka(kafka_tools: Path, tmp_path: Path) -> None:
    (jmx_port,) = free_ports(1)
    options = (
        CHEAP_COMPILER,
        f"-Dcom.sun.management.jmxremote.port={jmx_port}",
        "-Dcom.sun.management.jmxremote.authenticate=false",
        "-Dcom.sun.management.jmxremote.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    )
    kafka = KafkaOracle(tmp_path / "kafka", java_options=options)
    kafka.start()
    try:
        with member_at_work(kafka.bootstrap_server):
            kafkas = kafkas_metrics(jmx_port)
    finally:
        kafka.stop()
    partitions = "share.coordinator.state.topic.num.partitions"
    settings = {"prometheus.listener": "127.0.0.1:0", partitions: "1"}  # as the oracle
    with (
        EmbeddedBroker(tmp_path / "isotherm", settings) as broker,
        member_at_work(broker.bootstrap_servers),
    ):
        ours = own_metrics(broker.node.metrics_port)
    assert len(kafkas) > 60
    missing = {name for name in kafkas if name not in ours}
    excused = {name for name in kafkas if any(re.search(each, name) for each in MISSING)}
    assert sorted(missing ^ excused) == []
    assert [each for each in MISSING if not any(re.search(each, name) for name in missing)] == []
    kafkas = {name: value for name, value in kafkas.items() if name in ours}
    compared = {name for name in kafkas if SAME_VALUE.search(name)}
    assert len(compared) > 12
    assert {name: ours[name] for name in compared} == {name: kafkas[name] for name in compared}
    for name in set(kafkas) - compared:
        assert ours[name] > 0 or kafkas[name] == 0, name
