"""The JSON of a topic's messages: newest first over all partitions, the live tail, the download."""

from __future__ import annotations

import base64
import http.client
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from isotherm.client.node_address import NodeAddress
from isotherm.console.live_tail import BEHIND_OFFSETS_MAX, TAILS_AT_ONCE, LiveTail
from isotherm.console.openapi import PARTITIONS_MAX
from isotherm.console.records import RecordBrowser
from isotherm.errors import NotLeaderOrFollowerError
from isotherm.storage_view.cluster_storage import ClusterStorage, TopicStorage
from isotherm.storage_view.record_scan import FETCHES_MAX, RecordFilter
from isotherm.types import Offset, TopicPartition
from tests.support.console_server import running_console
from tests.support.scripted_cluster import ScriptedCluster, damaged_cluster, local_tier
from tests.support.scripted_records import FIRST_MS, ScriptedRecords
from tests.unit.console.test_console_api import get, json_of

PATH = "/api/topics/orders/records"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = damaged_cluster(history=10)
    with running_console(lambda: cluster, records=ScriptedRecords(reads_bucket=True)) as running:
        yield running


def offsets(part: dict[str, Any]) -> list[int]:
    return [each["offset"] for each in part["records"]]


def test_newest_messages_of_all_partitions_come_first(address: str) -> None:
    first, second = json_of(address, f"{PATH}?limit=3")["partitions"]
    assert offsets(first) == [12_699, 12_698, 12_697]
    assert offsets(second) == [11_399, 11_398, 11_397]
    assert (first["left"], second["left"]) == ("0:0:12697", "1:1000:11397")


def test_search_goes_on_with_what_is_left(address: str) -> None:
    seen, left = [], "1"
    while left:
        query = f"{PATH}?limit=500&ranges={left}&header=trace"
        (part,) = json_of(address, query)["partitions"]
        seen += offsets(part)
        left = part["left"]
    assert seen == list(range(11_350, 999, -50))


def test_bounds_are_offsets_and_times(address: str) -> None:
    query = f"{PATH}?order=oldest&since={FIRST_MS + 2000}&until={FIRST_MS + 2003}&ranges=0"
    (part,) = json_of(address, query)["partitions"]
    assert (offsets(part), part["left"]) == ([2000, 2001, 2002, 2003], None)
    (part,) = json_of(address, f"{PATH}?first=500&end=502&ranges=0")["partitions"]
    assert offsets(part) == [501, 500]


def test_condition_on_json_is_a_filter(address: str) -> None:
    condition = quote("value.flight = 4321")
    left, found = "0:4000:5000", []
    (part,) = json_of(address, f"{PATH}?ranges={left}&where={condition}")["partitions"]
    found = [json.loads(base64.b64decode(each["value"]["base64"])) for each in part["records"]]
    assert [each["flight"] for each in found] == [4321]
    assert (part["left"], part["examined"]) == (None, 1000)


def test_step_over_many_partitions_is_bounded() -> None:
    cluster = ScriptedCluster()
    for _ in range(40):
        cluster.add("many", [], local_tier(0, 0, 5000, 100))
    with running_console(lambda: cluster) as address:
        found = json_of(address, "/api/topics/many/records?limit=5")
        assert sum(each["reads"] for each in found["cost"]) == FETCHES_MAX
        untouched = [each["left"] for each in found["partitions"][FETCHES_MAX:]]
        assert untouched == [str(n) for n in range(FETCHES_MAX, 40)]
        status, _, body = get(address, "/api/topics/many/records?ranges=" + ",".join("0" * 65))
        assert (status, b"each once" in body) == (400, True)


def test_partition_without_a_leader_does_not_stop_the_others() -> None:
    cluster = damaged_cluster(history=1)

    class Refusing(ScriptedRecords):
        def fetch(self, leader: NodeAddress, place: TopicPartition, *rest: Any) -> Any:
            if place.partition == 0:
                raise NotLeaderOrFollowerError("it has moved")
            return super().fetch(leader, place, *rest)

    with running_console(lambda: cluster, records=Refusing()) as address:
        first, second = json_of(address, f"{PATH}?limit=2")["partitions"]
    assert (first["error"], first["left"], offsets(second)) == (
        "it has moved",
        "0",
        [11_399, 11_398],
    )


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("order=any", "newest, oldest"),
        ("ranges=x", "ranges must be like"),
        ("where=user.id=1", "not a condition"),
        ("from=disk", "leader, bucket"),
        ("limit=0", "from 1 to 500"),
        (f"ranges=0:1:{2**63}", "an offset must be"),
    ],
)
def test_wrong_parameter_is_named(address: str, query: str, reason: str) -> None:
    # A tail has no order, no source and no limit.
    tail = ("tail",) if query.startswith(("ranges", "where")) else ()
    for route in ("records", "download", *tail):
        status, _, body = get(address, f"/api/topics/orders/{route}?{query}")
        assert status == 400
        assert reason in json.loads(body)["error"]
    assert get(address, "/api/topics/orders/records?ranges=7")[0] == 404
    assert get(address, "/api/topics/none/records")[0] == 404


def test_download_is_lines_of_json_and_says_whether_it_is_whole(address: str) -> None:
    path = "/api/topics/orders/download?order=oldest&ranges=0:100:1700"
    status, headers, body = get(address, path)
    assert (status, headers["content-disposition"]) == (
        200,
        'attachment; filename="orders.jsonl"',
    )
    *rows, last = [json.loads(line) for line in body.splitlines()]
    assert [row["offset"] for row in rows] == list(range(100, 1700))
    assert (rows[0]["topic"], rows[0]["partition"], rows[0]["key"]) == ("orders", 0, "key-100")
    assert rows[400]["value_encoding"] == "base64"
    assert rows[0]["headers"] == [{"key": "trace", "value": "t-100", "encoding": "utf-8"}]
    assert last == {"download": {"records": 1600, "is_complete": True, "reason": None}}


def test_download_ends_at_its_bound_and_says_so(address: str) -> None:
    body = get(address, "/api/topics/orders/download?records=700")[2]
    *rows, last = [json.loads(line) for line in body.splitlines()]
    assert [row["offset"] for row in rows] == list(range(12_699, 11_999, -1))
    assert last["download"]["is_complete"] is False
    assert "700 records" in last["download"]["reason"]


def test_download_without_all_partitions_says_so() -> None:
    cluster = ScriptedCluster()
    for _ in range(PARTITIONS_MAX + 2):
        cluster.add("many", [], local_tier(0, 0, 1, 100))
    with running_console(lambda: cluster, records=ScriptedRecords()) as address:
        *rows, last = get(address, "/api/topics/many/download")[2].splitlines()
        chosen = f"{PARTITIONS_MAX},{PARTITIONS_MAX + 1}"
        *others, end = get(address, f"/api/topics/many/download?ranges={chosen}")[2].splitlines()
    assert len(rows) == PARTITIONS_MAX
    assert json.loads(last)["download"]["is_complete"] is False
    assert "the last 2 partitions are left out" in json.loads(last)["download"]["reason"]
    assert (len(others), json.loads(end)["download"]["is_complete"]) == (2, True)


class Tail:
    """A live tail of `orders`, and the ends of its logs."""

    def __init__(self, record_filter: RecordFilter, starts: dict[int, Offset]) -> None:
        self.cluster = damaged_cluster(history=1)
        self.topic_id: uuid.UUID | None = None
        self.source = ScriptedRecords()
        browser = RecordBrowser(self.source, lambda *_: None)
        self.tail = LiveTail(browser, self.source, record_filter, starts)

    def round(self, **ends: Offset) -> dict[str, Any] | None:
        for name, end in ends.items():
            self.source.live_ends[TopicPartition("orders", int(name[1:]))] = end
        storage = self.cluster.read()
        return self.tail.round(storage, self.topic_of(storage))

    def make_anew(self) -> None:
        """Delete the topic and create it again under the same name, with another id."""
        self.topic_id = uuid.uuid4()

    def topic_of(self, storage: ClusterStorage) -> TopicStorage:
        topic = storage.topics["orders"]
        if self.topic_id is None:
            return topic
        partitions = []
        for part in topic.partitions:
            place = part.state.partition._replace(topic_id=self.topic_id)
            partitions.append(replace(part, state=replace(part.state, partition=place)))
        return replace(topic, partitions=tuple(partitions))


def test_tail_has_each_new_message_once() -> None:
    tail = Tail(RecordFilter(), {0: 12_700, 1: 11_400})
    assert tail.round(p0=12_700, p1=11_400) is None
    found = tail.round(p0=12_702)
    assert found is not None
    assert [offsets(each) for each in found["partitions"]] == [[12_700, 12_701]]
    assert tail.round() is None
    found = tail.round(p0=12_703, p1=11_401)
    assert found is not None
    assert [offsets(each) for each in found["partitions"]] == [[12_702], [11_400]]


def test_tail_of_a_topic_made_anew_begins_with_its_first_message() -> None:
    tail = Tail(RecordFilter(), {0: 12_700})
    assert tail.round(p0=12_700) is None
    tail.make_anew()
    found = tail.round(p0=2)
    assert found is not None
    assert [offsets(each) for each in found["partitions"]] == [[0, 1]]
    assert tail.round() is None


def test_tail_that_is_far_behind_skips_and_says_so() -> None:
    tail = Tail(RecordFilter(key=b"key-20000"), {0: 12_700})
    found = tail.round(p0=20_001)
    assert found is not None
    assert found["skipped_offsets"] == 20_001 - BEHIND_OFFSETS_MAX - 12_700
    assert [offsets(each) for each in found["partitions"]] == [[20_000]]


def test_tails_at_once_are_bounded_and_end_with_their_pages() -> None:
    cluster = damaged_cluster(history=1)
    with running_console(lambda: cluster) as address:
        place = urlsplit(address).netloc
        opened = [http.client.HTTPConnection(place, timeout=300) for _ in range(9)]
        for each in opened[:TAILS_AT_ONCE]:
            each.request("GET", "/api/topics/orders/tail")
            answer = each.getresponse()
            assert answer.status == 200
            assert answer.headers.get_content_type() == "text/event-stream"
            assert answer.readline() == b"event: begin\n"
        refused = opened[TAILS_AT_ONCE]
        refused.request("GET", "/api/topics/orders/tail")
        answer = refused.getresponse()
        assert answer.status == 429
        assert b"follow topics already" in answer.read()
        for each in opened[:TAILS_AT_ONCE]:
            each.close()
        status = 429
        while status == 429:
            refused.request("GET", "/api/topics/orders/tail")
            answer = refused.getresponse()
            status = answer.status
            if status == 429:
                answer.read()
        assert status == 200
        refused.close()
