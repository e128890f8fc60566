"""What the JSON has of one topic, group or broker beyond the overview."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from isotherm.console.answers import topic_detail
from isotherm.console.broker_pages import broker_errors
from isotherm.console.detail_pages import MEMBERS_MAX, deliveries_row, topic_lags
from isotherm.console.watched_cluster import DETAILS_KEPT, Look, WatchedCluster
from isotherm.console.watched_metrics import MetricsLook
from isotherm.errors import RejectedError
from isotherm.storage_view.broker_release import BrokerRelease
from isotherm.storage_view.cluster_reader import BrokerState, LogDirState
from isotherm.storage_view.group_members import GroupMembers, Member
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.resource_settings import Setting
from isotherm.storage_view.share_deliveries import GroupDeliveries, ShareDeliveries
from isotherm.storage_view.share_offsets import ShareOffset
from isotherm.storage_view.traffic import Traffic
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.console_server import running_console
from tests.support.scripted_cluster import ScriptedCluster, damaged_cluster, local_tier


class DetailedCluster(ScriptedCluster):
    """A cluster that may refuse to show settings, and counts how often it is asked."""

    is_secret = False
    settings_reads = 0

    def read_topic_settings(self, topic: str) -> list[Setting]:
        self.settings_reads += 1
        if self.is_secret:
            raise RejectedError(f"a broker does not show a configuration topic={topic}")
        return super().read_topic_settings(topic)


@pytest.fixture
def cluster() -> DetailedCluster:
    cluster = DetailedCluster()
    cluster.add("orders", [], local_tier(0, 0, 10, 100), replicas=(1, 2, 3), in_sync=(1, 3))
    return cluster


@pytest.fixture
def address(cluster: ScriptedCluster) -> Iterator[str]:
    with running_console(lambda: cluster) as running:
        yield running


def json_of(address: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(urllib.request.urlopen(f"{address}{path}"))
    return found


def test_partitions_have_their_replicas(address: str) -> None:
    (row,) = json_of(address, "/api/topics/orders")["by_partition"]
    assert (row["leader"], row["replicas"], row["in_sync_replicas"]) == (1, [1, 2, 3], [1, 3])


def test_topic_has_the_traffic_that_brokers_count() -> None:
    topic = damaged_cluster(1).read().topics["orders"]
    assert topic_detail(topic, 0.0)["traffic"] is None
    look = MetricsLook({}, {"orders": Traffic(bytes_in=7.0)}, {}, 5)
    assert topic_detail(topic, 0.0, look)["traffic"]["bytes_in"] == 7.0
    # Brokers have no counter of a topic that nobody writes.
    assert topic_detail(topic, 0.0, MetricsLook({}, {}, {}, 5))["traffic"]["bytes_in"] == 0.0


def test_settings_say_what_differs_from_the_default(address: str) -> None:
    found = json_of(address, "/api/topics/orders/configuration")
    changed, default = found["settings"]
    assert changed == {
        "name": "retention.ms",
        "value": "-1",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "default_value": "604800000",
        "is_default": False,
        "is_sensitive": False,
        "is_read_only": False,
    }
    assert default["is_default"]
    assert found["settings_error"] is None


def test_settings_that_are_refused_have_a_reason(address: str, cluster: DetailedCluster) -> None:
    path = "/api/topics/orders/configuration"
    cluster.is_secret = True
    found = json_of(address, path)
    assert found["settings"] is None
    assert "does not show" in found["settings_error"]
    cluster.is_secret = False
    assert json_of(address, path)["settings_error"] is None


def test_unknown_topic_is_not_found(address: str, cluster: DetailedCluster) -> None:
    for page in ("configuration", "groups"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            json_of(address, f"/api/topics/nothing/{page}")
    assert cluster.settings_reads == 0


def test_groups_of_a_topic_have_their_lag_in_it_alone() -> None:
    with running_console(lambda: damaged_cluster(1000)) as address:
        (group,) = json_of(address, "/api/topics/orders/groups")["groups"]
        assert (group["group"], group["lag"], group["partitions"]) == ("billing", 200, 2)
        (other,) = json_of(address, "/api/topics/history/groups")["groups"]
        assert other["group"] == "backfill"
        assert json_of(address, "/api/topics/quiet/groups")["groups"] == []


def test_share_groups_have_a_start_offset_and_no_committed_one() -> None:
    cluster = damaged_cluster(1000)
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    share = {first: ShareOffset(12_650, 30), second: ShareOffset(None, None)}
    cluster.groups.append(GroupState("workers", "Stable", "share", {first: 12_650}, share=share))
    with running_console(lambda: cluster) as address:
        readers = json_of(address, "/api/topics/orders/groups")["groups"]
        by_partition = json_of(address, "/api/groups/workers")["by_partition"]
        (billing, *_) = json_of(address, "/api/groups/billing")["by_partition"]
    assert [(reader["group"], reader["lag"]) for reader in readers] == [
        ("billing", 200),
        ("workers", 30),
    ]
    assert [each["committed_offset"] for each in by_partition] == [None, None]
    assert [each["start_offset"] for each in by_partition] == [12_650, None]
    assert by_partition[0]["delivered_max"] == 20
    assert by_partition[1]["reads_from"] == "nothing yet"
    assert (billing["start_offset"], billing["delivered_max"]) == (None, None)


def test_share_group_has_what_became_of_its_records() -> None:
    cluster = damaged_cluster(1000)
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    share = {second: ShareOffset(5, 3), first: ShareOffset(12_650, 30)}
    cluster.groups.append(GroupState("workers", "Stable", "share", {}, share=share))
    cluster.deliveries["workers"] = GroupDeliveries(
        {first: ShareDeliveries(7, 2, 4, 3)}, {second: "TOPIC_AUTHORIZATION_FAILED"}
    )
    with running_console(lambda: cluster) as address:
        rows = json_of(address, "/api/groups/workers")["deliveries"]
        assert json_of(address, "/api/groups/billing")["deliveries"] is None
    counts = {"acknowledged": 7, "archived": 2, "released": 4, "delivery_count_max": 3}
    unknown = dict.fromkeys(["in_flight", *counts])
    place = {"topic": "orders", "partition": 0}
    assert rows == [
        {**place, **counts, "in_flight": None, "error": None},
        {**place, "partition": 1, **unknown, "error": "TOPIC_AUTHORIZATION_FAILED"},
    ]
    look = MetricsLook({}, {}, {}, 5, in_flight={("workers", first): 9, ("others", second): 8})
    (group,) = (each for each in cluster.groups if each.share)
    told = deliveries_row(group, Look(None, "no broker answers"), look)["deliveries"]
    assert [(each["in_flight"], each["error"]) for each in told] == [
        (9, "no broker answers"),
        (None, "no broker answers"),
    ]


def test_group_has_its_members_and_its_lag_by_topic() -> None:
    cluster = damaged_cluster(1000)
    places = (TopicPartition("orders", 0), TopicPartition("orders", 1))
    cluster.members["billing"] = GroupMembers(
        "uniform",
        (
            Member("m1", "static-1", "c1", "10.0.0.1", places[:1], awaited=places[1:]),
            Member("m2", None, "c2", "10.0.0.2", None),
        ),
    )
    with running_console(lambda: cluster) as address:
        found = json_of(address, "/api/groups/billing")
        assert json_of(address, "/api/groups/backfill")["members"] == []
    first, second = found["members"]
    assert first == {
        "member_id": "m1",
        "instance_id": "static-1",
        "client_id": "c1",
        "host": "10.0.0.1",
        "assigned": {"orders": [0]},
        "awaited": {"orders": [1]},
    }
    assert second["assigned"] is None
    assert (found["assignor"], found["members_total"], found["members_error"]) == (
        "uniform",
        2,
        None,
    )
    assert found["by_topic"] == [{"topic": "orders", "partitions": 2, "lag": 200, "remote_lag": 0}]


def test_page_of_a_large_group_is_bounded() -> None:
    cluster = damaged_cluster(1000)
    members = tuple(Member(f"m{n}", None, "c", "h", ()) for n in range(MEMBERS_MAX + 1))
    cluster.members["billing"] = GroupMembers("range", members)
    with running_console(lambda: cluster) as address:
        found = json_of(address, "/api/groups/billing")
    assert (len(found["members"]), found["members_total"]) == (MEMBERS_MAX, MEMBERS_MAX + 1)


def test_lag_in_a_topic_is_what_is_left() -> None:
    def row(topic: str, lag: int | None) -> dict[str, Any]:
        return {"topic": topic, "lag": lag, "remote_lag": None if lag is None else 0}

    rows = [row("a", 5), row("b", None), row("a", -3), row("c", -2), row("d", 0), row("d", None)]
    assert {topic_lag["topic"]: topic_lag["lag"] for topic_lag in topic_lags(rows)} == {
        "a": 5,
        "b": None,
        "c": -2,
        "d": 0,
    }


def test_brokers_have_disks_leaders_and_a_release(address: str, cluster: DetailedCluster) -> None:
    disks = (
        LogDirState("/a", 60, 1000, 400, None),
        LogDirState("/b", 0, None, None, "KAFKA_STORAGE_ERROR"),
    )
    cluster.brokers = (
        BrokerState(1, "one", 9092, "r1", 100, None, disks),
        BrokerState(2, "two", 9092, None, 0, "refused"),
    )
    first, second = json_of(address, "/api/brokers")["brokers"]
    assert (first["leaders"], first["replicas"], first["lagging_replicas"]) == (1, 1, 0)
    assert (second["leaders"], second["replicas"], second["lagging_replicas"]) == (0, 1, 1)
    assert (first["is_controller"], second["is_controller"]) == (True, False)
    assert (first["kafka_release"], first["cluster_level"]) == ("4.3", 29)
    assert (second["kafka_release"], second["broker_error"]) == (None, "refused")
    assert first["log_dirs"][0] == {
        "path": "/a",
        "size_in_bytes": 60,
        "total_bytes": 1000,
        "usable_bytes": 400,
        "error": None,
    }
    assert first["log_dirs"][1]["error"] == "KAFKA_STORAGE_ERROR"
    one = json_of(address, "/api/brokers/1")
    assert [each["name"] for each in one["settings"]] == ["retention.ms", "cleanup.policy"]
    assert one["errors"] is None
    # A broker that does not answer is not asked for its configuration.
    two = json_of(address, "/api/brokers/2")
    assert (two["settings"], two["settings_error"]) == (None, "refused")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        json_of(address, "/api/brokers/3")


def test_errors_of_a_broker_are_those_of_its_host(cluster: DetailedCluster) -> None:
    cluster.brokers = tuple(
        BrokerState(number, host, 9092 + number, None, 0, None)
        for number, host in enumerate(("a", "b", "b"))
    )
    storage = cluster.read()
    rows = [{"broker": f"{host}:9404", "errors": "e", "topic": "t", "count": 1} for host in "ab"]
    errors = {
        "since_ms": 5,
        "rows": rows,
        "unanswered": [{"url": "http://b:9405/metrics", "reason": "refused"}],
    }
    only = broker_errors(storage.brokers[0], storage, errors)
    assert (only["brokers"], only["rows"], only["unanswered"]) == ([0], rows[:1], [])
    shared = broker_errors(storage.brokers[2], storage, errors)
    assert (shared["brokers"], shared["rows"]) == ([1, 2], rows[1:])
    assert len(shared["unanswered"]) == 1


@pytest.mark.parametrize(
    ("level", "release"),
    [(None, None), (6, None), (7, "3.3"), (21, "3.9"), (25, "4.0"), (31, None)],
)
def test_release_is_that_of_the_highest_level(level: int | None, release: str | None) -> None:
    assert BrokerRelease(level, None).kafka_release == release


def test_settings_are_read_once_in_an_interval_and_kept_for_some_topics_alone() -> None:
    cluster, clock = DetailedCluster(), SimClock()
    watched = WatchedCluster(lambda: cluster, clock, 5.0)
    first = watched.topic_settings("t0")
    assert watched.topic_settings("t0") is first
    for number in range(DETAILS_KEPT):
        watched.topic_settings(f"t{number}")
    assert cluster.settings_reads == DETAILS_KEPT
    watched.topic_settings("one more")
    watched.topic_settings(f"t{DETAILS_KEPT - 1}")
    assert cluster.settings_reads == DETAILS_KEPT + 1
    # It was the one that nobody had looked at for longest.
    watched.topic_settings("t0")
    assert cluster.settings_reads == DETAILS_KEPT + 2
