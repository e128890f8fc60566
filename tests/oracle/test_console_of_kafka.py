"""The console on a topic that Apache Kafka tiered. The oracles are a consumer's records, the files
of both tiers, and the metadata topic."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

from isotherm.clock import SystemClock
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.record_sources import ClusterRecords
from oracle.tiered_topic import TieredTopic
from tests.support.browser import DRIVER, NO_BROWSER, open_browser
from tests.support.console_server import running_console
from tests.support.described_members import described_members, joined_members, shown_members

PARTITION = 1


@pytest.fixture(scope="module")
def address(kafka_tiered_topic: TieredTopic) -> Iterator[str]:
    properties = {"bootstrap.servers": kafka_tiered_topic.bootstrap_server}
    clock = SystemClock()
    with running_console(
        lambda: StorageReader(properties, clock),
        interval_s=5,
        records=ClusterRecords(properties, clock),
    ) as running:
        yield running


def json_of(address: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(urllib.request.urlopen(f"{address}{path}"))
    return found


def test_records_of_both_tiers_are_those_of_a_consumer(
    address: str, kafka_tiered_topic: TieredTopic
) -> None:
    topic = kafka_tiered_topic
    expected = {each.offset: each for each in topic.expected if each.partition == PARTITION}
    border = topic.local_start_offsets[PARTITION]
    path = f"/api/topics/{topic.name}/records?order=oldest&ranges={PARTITION}"
    for first in (0, border - 3):
        found = json_of(address, f"{path}&first={first}&limit=6")
        (part,) = found["partitions"]
        assert [each["offset"] for each in part["records"]] == list(range(first, first + 6))
        for each in part["records"]:
            wanted = expected[each["offset"]]
            assert each["tier"] == ("remote" if each["offset"] < border else "local")
            assert (each["segment"] is None) == (each["offset"] >= border)
            for name, content in (("key", wanted.key), ("value", wanted.value)):
                shown = each[name] and base64.b64decode(each[name]["base64"])
                assert shown == content
        assert {each["tier"] for each in found["cost"]} == {"remote", "local"} - (
            {"local"} if first == 0 else set()
        )
    middle = expected[border // 2]
    (since,) = json_of(address, f"{path}&since={middle.timestamp_ms}&limit=1")["partitions"]
    assert since["first_offset"] == min(
        record.offset for record in expected.values() if record.timestamp_ms >= middle.timestamp_ms
    )


def test_past_of_the_tiers_is_in_kafkas_own_topic(
    address: str, kafka_tiered_topic: TieredTopic
) -> None:
    topic = kafka_tiered_topic
    path = f"/api/topics/{topic.name}"
    reach = json_of(address, f"{path}/history")
    assert reach["kept_in"] == "__remote_log_metadata"
    before, now, present = (
        json_of(address, f"{path}/map{at}")["maps"][PARTITION]
        for at in (f"?at={reach['since_ms'] - 1}", f"?at={reach['until_ms']}", "")
    )
    files = len(list(topic.remote_root.glob(f"{topic.name}-{PARTITION}-*/*.log")))
    assert before["counts"]["remote"] == 0
    assert now["counts"]["remote"] == files
    assert sum(present["counts"][kind] for kind in ("remote", "both")) == files
    assert present["leader_epochs"] == [[0, 0]]
    assert present["leader_epoch"] == 0


def test_configuration_is_that_of_librdkafka(address: str, kafka_tiered_topic: TieredTopic) -> None:
    topic = kafka_tiered_topic
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_server})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
    (described,) = admin.describe_configs([resource]).values()
    entries = described.result()
    found = json_of(address, f"/api/topics/{topic.name}/configuration")["settings"]
    assert {each["name"]: each["value"] for each in found} == {
        name: entry.value for name, entry in entries.items()
    }
    assert {each["name"] for each in found if each["is_default"]} == {
        name for name, entry in entries.items() if entry.is_default
    }
    own = [each["source"] == "DYNAMIC_TOPIC_CONFIG" for each in found]
    assert own == sorted(own, reverse=True)
    default = ConfigSource.DEFAULT_CONFIG.value
    assert {each["name"]: each["default_value"] for each in found} == {
        name: next((s.value for s in entry.synonyms.values() if s.source == default), None)
        for name, entry in entries.items()
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_those_of_librdkafka(
    address: str, kafka_tiered_topic: TieredTopic, protocol: str
) -> None:
    servers, group = kafka_tiered_topic.bootstrap_server, f"{protocol}-readers"
    with joined_members(servers, group, protocol, kafka_tiered_topic.name):
        members = described_members(servers, group)
        assert len(members) == 2
        assert shown_members(address, group) == members


@pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)
def test_pages_show_it(address: str, kafka_tiered_topic: TieredTopic) -> None:
    name = kafka_tiered_topic.name
    with open_browser() as browser:
        browser.open(f"{address}/#/topics/{name}", "canvas[data-cells]")
        assert "only remote" in browser.text(".map header")
        assert browser.text("#sums dd.bad") == ""
        browser.open(f"{address}/#/records/{name}?partition=0&offset=0", "#records tbody tr")
        assert "remote" in browser.text("#records tbody tr")
        assert browser.messages() == []
