"""The console's records, from a broker's two tiers and from its bucket.

The oracle is the producer's input.
"""

from __future__ import annotations

import base64
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.clock import SystemClock
from isotherm.console.records import OffsetRange, RecordBrowser, TopicSearch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.storage_view.cluster_storage import ClusterStorage, StorageReader
from isotherm.storage_view.record_scan import RecordFilter
from isotherm.storage_view.record_sources import ClusterRecords
from isotherm.storage_view.rows import Row
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker

VALUES = [os.urandom(1000) for _ in range(3000)]
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(folder) as running:
        servers = running.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("letters", 1, 1, config=TIERED_TOPIC)])["letters"].result()
        producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd"})
        for number, value in enumerate(VALUES):
            producer.produce(
                "letters",
                value=value,
                key=f"k{number}",
                timestamp=FIRST_MS + number,
                headers=[("n", str(number))],
            )
            if number % 50 == 49:
                producer.flush()
        yield running


@pytest.fixture(scope="module")
def storage(broker: EmbeddedBroker) -> ClusterStorage:
    """The topic's storage, once its closed segments are only in the bucket."""
    pause = threading.Event()
    with StorageReader({"bootstrap.servers": broker.bootstrap_servers}, SystemClock()) as reader:
        for _ in range(6000):
            found = reader.read()
            local = found.topics["letters"].partitions[0].state.local
            if local is not None and local.local_log_start_offset > 0:
                return found
            pause.wait(0.05)
    raise AssertionError("no segment was tiered")


@pytest.fixture(scope="module")
def browser(broker: EmbeddedBroker, storage: ClusterStorage) -> Iterator[RecordBrowser]:
    settings = ObjectStoreSettings.from_config({"url": f"file://{broker.directory / 'bucket'}"})
    with StorageReader({"bootstrap.servers": broker.bootstrap_servers}, SystemClock()) as reader:
        reader.read()
        assert reader.source is not None
        source = reader.source
        records = ClusterRecords(
            {"bootstrap.servers": broker.bootstrap_servers},
            SystemClock(),
            ObjectStoreRemoteStorageManager(settings),
        )
        yield RecordBrowser(
            records, lambda p, id_: source.metadata(p.state.partition, uuid.UUID(bytes=id_))
        )
        records.close()


def test_past_is_kept_in_the_audit_topic(broker: EmbeddedBroker, storage: ClusterStorage) -> None:
    """A new cluster starts at level 1 with a compacted metadata topic, so history is in the
    audit topic.
    """
    partition = storage.topics["letters"].partitions[0]
    place = partition.state.partition
    with StorageReader({"bootstrap.servers": broker.bootstrap_servers}, SystemClock()) as reader:
        found = reader.read_histories(reader.read(), [place])
    assert found is not None
    assert found.topic == "__remote_log_metadata_audit"
    history = found.by_partition[place]
    assert history.first_ms is not None
    assert len(history.as_of(partition.segments, history.first_ms - 1).segments) == 0
    now = history.as_of(partition.segments, storage.read_at_ms)
    assert now.segments.ids == partition.segments.ids
    assert now.unknown == 0


def all_steps(
    browser: RecordBrowser, storage: ClusterStorage, search: TopicSearch
) -> tuple[list[Row], list[Row]]:
    """The records of a whole scan, and the cost of each step."""
    records, costs = [], []
    while search.ranges:
        steps = browser.topic_step(storage, storage.topics["letters"], search)
        found = browser.topic_rows("letters", steps)
        (part,) = found["partitions"]
        assert part["error"] is None
        records += part["records"]
        costs += found["cost"]
        search = replace(search, ranges=[step.left for step in steps if step.left is not None])
    return records, costs


SEARCH = TopicSearch(
    ranges=[OffsetRange(0)], is_newest_first=False, filter=RecordFilter(), found_max=500
)


@pytest.mark.parametrize("prefers_bucket", [False, True], ids=["leader", "bucket"])
def test_every_record_is_what_was_produced(
    browser: RecordBrowser, storage: ClusterStorage, prefers_bucket: bool
) -> None:
    records, costs = all_steps(browser, storage, replace(SEARCH, prefers_bucket=prefers_bucket))
    assert [base64.b64decode(record["value"]["base64"]) for record in records] == VALUES
    assert [record["offset"] for record in records] == list(range(len(VALUES)))
    local = storage.topics["letters"].partitions[0].state.local
    assert local is not None
    border = local.local_log_start_offset
    for record in records:
        is_remote = record["segment"] is not None if prefers_bucket else record["offset"] < border
        assert (record["tier"] == "remote") == is_remote
    remote = [cost for cost in costs if cost["tier"] == "remote"]
    assert {each["source"] == "bucket" for each in remote} == {prefers_bucket}
    assert sum(each["bytes"] for each in remote) > border * 1000


def test_scan_begins_at_a_time_in_the_remote_tier(
    browser: RecordBrowser, storage: ClusterStorage
) -> None:
    search = replace(SEARCH, since_ms=FIRST_MS + 321, found_max=1)
    steps = browser.topic_step(storage, storage.topics["letters"], search)
    (part,) = browser.topic_rows("letters", steps)["partitions"]
    (record,) = part["records"]
    assert (record["offset"], record["tier"]) == (321, "remote")


def test_header_is_found_without_an_index(browser: RecordBrowser, storage: ClusterStorage) -> None:
    wanted = RecordFilter(header_name="n", header_value=b"2222")
    records, _ = all_steps(browser, storage, replace(SEARCH, filter=wanted, prefers_bucket=True))
    assert [record["offset"] for record in records] == [2222]
