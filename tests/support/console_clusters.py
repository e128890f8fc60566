"""Clusters in the states in which people open the console, for its pictures and its tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.spark.tables.dead_letters import DeadLetter, DeadLetters
from isotherm.spark.tables.listed_table import ListedTable
from isotherm.spark.tables.topic_table import Identity
from isotherm.storage_view.cluster_reader import BrokerState, LogDirState
from isotherm.storage_view.group_reader import GroupState
from isotherm.types import TopicPartition
from tests.support.scripted_cluster import (
    NOW_MS,
    ScriptedCluster,
    busy_cluster,
    local_tier,
    remote_segment,
)
from tests.support.scripted_tables import ScriptedTables

_GIB = 1 << 30
_HOUR_MS = 3_600_000


class ConsoleCluster(NamedTuple):
    """A cluster, and the topic and the group whose pages are looked at, if it has any.
    `tables` is None if the console has no warehouse."""

    cluster: ScriptedCluster
    topic: str | None
    group: str | None
    tables: ScriptedTables | None = None


def many_topics() -> ConsoleCluster:
    """Long names, brokers with faults, and tables with dead letters."""
    cluster = busy_cluster()
    cluster.brokers = (
        BrokerState(1, "broker-1" + ".kafka.production" * 12, 9092, "zone-a", 6 * _GIB, None, (
            LogDirState("/var/lib/kafka/data-0", 5 * _GIB, 1000 * _GIB, 40 * _GIB, None),
            LogDirState("/var/lib/kafka/" + "data-1/" * 20, 0, None, None, "KAFKA_STORAGE_ERROR"),
        )),
        BrokerState(2, "broker-2", 9092, None, 0, "no broker is reachable: refused"),
        BrokerState(1003, "10.0.0.3", 9092, "zone-b", 9 * _GIB, None, (
            LogDirState("/data", 9 * _GIB, 2000 * _GIB, 1500 * _GIB, None),
        )),
    )  # fmt: skip
    topics = sorted(cluster.read().topics)
    covered = {partition: 1_000_000 + partition for partition in range(60)}
    tables = [
        ListedTable(
            "iceberg",
            f"lake.{topic}",
            Identity(topic=topic, topic_id=_topic_id(cluster, topic), value_format="avro"),
            rows=None if n == 3 else 13_000_000,
            snapshots=700 + n,
            last_commit_ms=None if n == 2 else NOW_MS - n * _HOUR_MS,
            covered=covered if n == 1 else {0: 13_400_000},
            dead_letters=1234 if n == 0 else 0,
        )
        for n, topic in enumerate(topics[:20])
    ]
    reason = "value: it is not JSON: Expecting value at character 17, " * 3
    dead = DeadLetters(
        files=8,
        rows=1200,
        reasons_total=23,
        reasons=tuple((f"{reason}{n}", 600 // (n + 1)) for n in range(10)),
        newest=tuple(DeadLetter(0, 13_000_000 + n, NOW_MS - n, reason) for n in range(5)),
    )
    return ConsoleCluster(
        cluster, topics[0], cluster.groups[-1].group_id, ScriptedTables(tables, dead)
    )


def _topic_id(cluster: ScriptedCluster, topic: str) -> str:
    return str(cluster.read().topics[topic].state.topic_id)


def failing_bucket() -> ConsoleCluster:
    """No copy has ended for some hours: each topic has begun uploads, and its disk fills."""
    cluster, number = ScriptedCluster(), 0
    for place, (topic, partitions) in enumerate(
        {"orders": 3, "payments": 2, "clicks": 4, "audit.log": 1}.items()
    ):
        for partition in range(partitions):
            number += 100
            copied = [
                remote_segment(number + n, n * 500_000, n * 500_000 + 499_999, size=_GIB)
                for n in range(8 + place)
            ]
            start = 500_000 * len(copied)
            begun = [
                remote_segment(
                    number + 50 + n,
                    start,
                    start + 499_999,
                    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
                    size=_GIB,
                    age_ms=(5 - n) * _HOUR_MS,
                )
                for n in range(4)
            ]
            end = start + 3_200_000 + 1000 * partition
            size = (9 + place) * _GIB + 77_777_777 * partition
            cluster.add(topic, copied + begun, local_tier(0, start - 1_000_000, end, size))
    ends = {TopicPartition("orders", n): 7_000_000 for n in range(3)}
    cluster.groups = [GroupState("fulfilment", "Stable", "consumer", ends)]
    return ConsoleCluster(cluster, "orders", "fulfilment")


def empty_cluster() -> ConsoleCluster:
    return ConsoleCluster(ScriptedCluster(), None, None, ScriptedTables())


def group_far_behind() -> ConsoleCluster:
    """One group reads from the beginning of a large topic, the others from the end."""
    cluster, partitions = ScriptedCluster(), 12
    for partition in range(partitions):
        segments = [
            remote_segment(
                1000 * partition + n + 1,
                n * 1_000_000,
                n * 1_000_000 + 999_999,
                size=_GIB,
                age_ms=(200 - n) * 12 * _HOUR_MS,
            )
            for n in range(200)
        ]
        tier = local_tier(0, 198_000_000, 200_400_000, 3 * _GIB)
        cluster.add("clickstream", segments, tier)
    place = [TopicPartition("clickstream", n) for n in range(partitions)]
    cluster.groups = [
        GroupState("reindex-2026", "Stable", "classic", {
            each: 2_000_000 + 7_300_000 * each.partition for each in place
        }),
        GroupState("sessions", "Stable", "consumer", dict.fromkeys(place, 200_399_000)),
        GroupState("dashboards", "Empty", "consumer", dict.fromkeys(place[:4], 199_000_000)),
    ]  # fmt: skip
    return ConsoleCluster(cluster, "clickstream", "reindex-2026")


CONSOLE_CLUSTERS: dict[str, Callable[[], ConsoleCluster]] = {
    "many-topics": many_topics,
    "failing-bucket": failing_bucket,
    "empty": empty_cluster,
    "far-behind": group_far_behind,
}


def pages_of(looked_at: ConsoleCluster) -> dict[str, str]:
    """The address of each page, by the page's name."""
    pages = {name: f"#/{name}" for name in ("topics", "groups", "brokers", "records", "tables")}
    pages = {"overview": "#/", **pages, "answers": "#/answers", "jobs": "#/jobs"}
    pages["broker"] = f"#/brokers/{looked_at.cluster.read().brokers[0].broker_id}"
    if looked_at.topic is not None:
        pages["topic"] = f"#/topics/{looked_at.topic}"
        pages["messages"] = f"#/records/{looked_at.topic}"
    if looked_at.group is not None:
        pages["group"] = f"#/groups/{looked_at.group}"
    nowhere = {"missing": "#/nothing/of/this", "unknown-topic": "#/topics/none"}
    if looked_at.tables is not None and looked_at.tables.listed():
        pages["table"] = f"#/tables/{looked_at.tables.listed()[0].name}"
    return {**pages, **nowhere, "api": "api/"}
