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
from isotherm.console.records import SCANS_AT_ONCE, RecordBrowser, RecordsWanted, TooManyScansError
from isotherm.errors import NotLeaderOrFollowerError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.storage_view.record_scan import Fetched, RecordFilter, Tier
from isotherm.types import Offset, TopicPartition
from tests.support.console_server import running_console
from tests.support.scripted_cluster import damaged_cluster
from tests.support.scripted_records import FIRST_MS, ScriptedRecords
from tests.unit.console.test_console_api import get, json_of

small_cluster = functools.partial(damaged_cluster, history=10)
PATH = "/api/topics/orders/partitions/0/records"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = small_cluster()
    with running_console(lambda: cluster, records=ScriptedRecords(reads_bucket=True)) as running:
        yield running


def bytes_of(content: dict[str, Any]) -> bytes:
    return base64.b64decode(content["base64"])


def test_record_says_its_tier_and_its_segment(address: str) -> None:
    """`orders` is only remote below 9000, in both tiers below 12,000, and only local from there
    on."""
    found = json_of(address, f"{PATH}?offset=8999&limit=2")
    first, second = found["records"]
    assert (first["offset"], first["tier"]) == (8999, "remote")
    assert bytes_of(first["key"]) == b"key-8999"
    facts = json_of(address, f"/api/topics/orders/partitions/0/segments/{first['segment']}")
    assert (facts["start_offset"], facts["end_offset"]) == (8000, 8999)
    assert (second["offset"], second["segment"] is None) == (9000, False)
    assert json_of(address, f"{PATH}?offset=9000&limit=1")["records"][0]["tier"] == "local"
    assert json_of(address, f"{PATH}?offset=12000&limit=1")["records"][0]["segment"] is None


def test_cost_is_given_by_tier_and_source(address: str) -> None:
    found = json_of(address, f"{PATH}?offset=8000&limit=500&header=trace")
    cost = {(each["tier"], each["source"]): each for each in found["cost"]}
    # Each fetch has 1000 offsets: one is of the remote tier, the others are of the local tier.
    assert cost["remote", "broker 127.0.0.1:9"]["reads"] == 1
    assert cost["local", "broker 127.0.0.1:9"]["reads"] == 4
    assert all(each["bytes"] > 1000 and each["seconds"] > 0 for each in cost.values())
    assert found["is_end"]


def test_bucket_is_read_for_what_it_has(address: str) -> None:
    found = json_of(address, f"{PATH}?offset=11000&limit=500&key=99&from=bucket")
    assert {(each["tier"], each["source"]) for each in found["cost"]} == {
        ("remote", "bucket"),
        ("local", "broker 127.0.0.1:9"),
    }


def test_scan_begins_at_a_time_or_at_the_log_start(address: str) -> None:
    since = json_of(address, f"{PATH}?time={FIRST_MS + 4321}&limit=1")
    assert since["first_offset"] == since["records"][0]["offset"] == 4321
    assert since["records"][0]["timestamp_ms"] == FIRST_MS + 4321
    second = "/api/topics/orders/partitions/1/records"
    assert json_of(address, f"{second}?limit=1")["first_offset"] == 1000
    assert json_of(address, f"{second}?offset=3&limit=1")["first_offset"] == 1000


def test_filters_and_steps_find_each_record_once(address: str) -> None:
    seen, at, is_end = [], 0, False
    while not is_end:
        found = json_of(address, f"{PATH}?offset={at}&limit=40&header=trace&value=flight")
        seen += [each["offset"] for each in found["records"]]
        at, is_end = found["next_offset"], found["is_end"]
    assert seen == [n for n in range(0, 12_700, 50) if n % 500]


@pytest.mark.parametrize(
    ("query", "status"),
    [("offset=x", 400), ("limit=0", 400), ("limit=501", 400), ("time=noon", 400)],
)
def test_wrong_query_says_so(address: str, query: str, status: int) -> None:
    assert get(address, f"{PATH}?{query}")[0] == status
    assert get(address, "/api/topics/orders/partitions/9/records")[0] == 404


def test_console_without_a_bucket_refuses_to_read_it() -> None:
    with running_console(small_cluster) as address:
        assert not json_of(address, "/api/topics/orders")["reads_bucket"]
        status, _, body = get(address, f"{PATH}?from=bucket")
    assert status == 400
    assert b"--path" in body


class Refused(ScriptedRecords):
    def fetch(self, *_: object) -> Fetched:
        raise NotLeaderOrFollowerError("the leader does not give records reason=UNKNOWN")


def test_refusal_of_the_leader_is_passed_on() -> None:
    with running_console(small_cluster, records=Refused()) as address:
        status, _, body = get(address, PATH)
    assert status == 502
    assert b"reason=UNKNOWN" in body


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
    partition = storage.topics["orders"].partitions[0]
    wanted = RecordsWanted(
        offset=0, timestamp_ms=None, found_max=1, filter=RecordFilter(), prefers_bucket=False
    )
    others = [
        threading.Thread(target=browser.step, args=(storage, partition, wanted))
        for _ in range(SCANS_AT_ONCE)
    ]
    for each in others:
        each.start()
    for _ in others:
        assert source.begun.acquire(timeout=300)
    with pytest.raises(TooManyScansError):
        browser.step(storage, partition, wanted)
    source.go.set()
    for each in others:
        each.join()
    assert browser.step(storage, partition, wanted)["next_offset"] == 1
