"""The JSON of records: where a read starts, the tier of each record, and the cost of reading
them."""

from __future__ import annotations

import base64
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from isotherm.client.node_address import NodeAddress
from isotherm.console.records import (
    SCANS_AT_ONCE,
    OffsetRange,
    RecordBrowser,
    TooManyScansError,
    TopicSearch,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.storage_view.record_scan import Fetched, RecordFilter, Tier
from isotherm.types import Offset, TopicPartition
from tests.support.console_server import running_console
from tests.support.scripted_cluster import damaged_cluster
from tests.support.scripted_records import FIRST_MS, ScriptedRecords
from tests.unit.console.test_console_api import get, json_of

small_cluster = functools.partial(damaged_cluster, history=10)
PATH = "/api/topics/orders/records"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = small_cluster()
    with running_console(lambda: cluster, records=ScriptedRecords(reads_bucket=True)) as running:
        yield running


def bytes_of(content: dict[str, Any]) -> bytes:
    return base64.b64decode(content["base64"])


def part_of(address: str, query: str, partition: int = 0) -> dict[str, Any]:
    """What one step does in one partition, from the oldest record on."""
    (part,) = step_of(address, query, partition)["partitions"]
    found: dict[str, Any] = part
    return found


def step_of(address: str, query: str, partition: int = 0) -> dict[str, Any]:
    ranges = "" if "ranges=" in query else f"&ranges={partition}"
    found: dict[str, Any] = json_of(address, f"{PATH}?order=oldest&{query}{ranges}")
    return found


def test_record_says_its_tier_and_its_segment(address: str) -> None:
    """`orders` is only remote below 9000, in both tiers below 12,000, and only local from there
    on."""
    first, second = part_of(address, "first=8999&limit=2")["records"]
    assert (first["offset"], first["tier"]) == (8999, "remote")
    assert bytes_of(first["key"]) == b"key-8999"
    facts = json_of(address, f"/api/topics/orders/partitions/0/segments/{first['segment']}")
    assert (facts["start_offset"], facts["end_offset"]) == (8000, 8999)
    assert (second["offset"], second["segment"] is None) == (9000, False)
    assert part_of(address, "first=9000&limit=1")["records"][0]["tier"] == "local"
    assert part_of(address, "first=12000&limit=1")["records"][0]["segment"] is None


def test_cost_is_given_by_tier_and_source(address: str) -> None:
    found = step_of(address, "first=8000&limit=500&header=trace")
    cost = {(each["tier"], each["source"]): each for each in found["cost"]}
    # Each fetch has 1000 offsets: one is of the remote tier, the others are of the local tier.
    assert cost["remote", "broker 127.0.0.1:9"]["reads"] == 1
    assert cost["local", "broker 127.0.0.1:9"]["reads"] == 4
    assert all(each["bytes"] > 1000 and each["seconds"] > 0 for each in cost.values())
    assert found["partitions"][0]["left"] is None


def test_bucket_is_read_for_what_it_has(address: str) -> None:
    found = step_of(address, "first=11000&limit=500&key=99&from=bucket")
    assert {(each["tier"], each["source"]) for each in found["cost"]} == {
        ("remote", "bucket"),
        ("local", "broker 127.0.0.1:9"),
    }


def test_scan_begins_at_a_time_or_at_the_log_start(address: str) -> None:
    since = part_of(address, f"since={FIRST_MS + 4321}&limit=1")
    assert since["first_offset"] == since["records"][0]["offset"] == 4321
    assert since["records"][0]["timestamp_ms"] == FIRST_MS + 4321
    assert part_of(address, "limit=1", 1)["first_offset"] == 1000
    assert part_of(address, "first=3&limit=1", 1)["first_offset"] == 1000


def test_filters_and_steps_find_each_record_once(address: str) -> None:
    seen, left = [], "0"
    while left is not None:
        found = part_of(address, f"ranges={left}&limit=40&header=trace&value=flight")
        seen += [each["offset"] for each in found["records"]]
        left = found["left"]
    assert seen == [n for n in range(0, 12_700, 50) if n % 500]


@pytest.mark.parametrize("query", ["first=x", "limit=0", "limit=501", "since=noon"])
def test_wrong_query_says_so(address: str, query: str) -> None:
    assert get(address, f"{PATH}?{query}")[0] == 400


def test_console_without_a_bucket_refuses_to_read_it() -> None:
    with running_console(small_cluster) as address:
        assert not json_of(address, "/api/topics/orders")["reads_bucket"]
        status, _, body = get(address, f"{PATH}?from=bucket")
    assert status == 400
    assert b"--path" in body


class Waiting(ScriptedRecords):
    """Holds every fetch until `go` is set, so that scans overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def fetch(
        self,
        leader: NodeAddress,
        place: TopicPartition,
        offset: Offset,
        tier: Tier,
        remote: RemoteLogSegmentMetadata | None,
    ) -> Fetched:
        self.begun.release()
        assert self.go.wait(300)
        return super().fetch(leader, place, offset, tier, remote)


def test_scans_at_once_are_bounded() -> None:
    source = Waiting()
    browser = RecordBrowser(source, lambda *_: None)
    storage = small_cluster().read()
    topic = storage.topics["orders"]
    search = TopicSearch(
        ranges=[OffsetRange(0)], is_newest_first=False, filter=RecordFilter(), found_max=1
    )
    others = [
        threading.Thread(target=browser.topic_step, args=(storage, topic, search))
        for _ in range(SCANS_AT_ONCE)
    ]
    for other in others:
        other.start()
    for _ in others:
        assert source.begun.acquire(timeout=300)
    with pytest.raises(TooManyScansError):
        browser.topic_step(storage, topic, search)
    source.go.set()
    for other in others:
        other.join()
    (step,) = browser.topic_step(storage, topic, search)
    assert step.step.next_offset == 1
