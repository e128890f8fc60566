"""The console's JSON and headers over HTTP. The content comes from the scripted cluster."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from isotherm.cli.topic_storage import problem_line
from isotherm.config.http_credentials import FAILURES_FREE
from isotherm.console.answers import GroupReading, group_detail, group_rows, overview
from isotherm.console.app import STATIC
from isotherm.console.group_answers import group_answers
from isotherm.console.openapi import openapi_document
from isotherm.console.topic_answers import storage_problems, topic_answers, topic_problems
from isotherm.console.watched_cluster import WatchedCluster
from isotherm.console.watched_metrics import MetricsLook
from isotherm.errors import BrokerUnreachableError
from isotherm.spark.tables.listed_table import ListedTable
from isotherm.spark.tables.topic_table import Identity
from isotherm.storage_view.cluster_storage import ClusterStorage
from isotherm.storage_view.copy_signs import CopySigns
from isotherm.storage_view.group_progress import WINDOW_MS, GroupProgress
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.prices import price_list
from isotherm.storage_view.share_offsets import ShareOffset
from isotherm.storage_view.traffic import ALL_TOPICS, Traffic
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.console_server import CLIENT_ARGUMENTS, SWEEP_COMMAND, running_console
from tests.support.scripted_cluster import (
    NOW_MS,
    ScriptedCluster,
    damaged_cluster,
    local_tier,
    remote_segment,
)
from tests.support.scripted_tables import ScriptedTables

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster, reports = damaged_cluster(), tmp_path_factory.mktemp("reports")
    (reports / "sweep-1.jsonl").write_text('{"swept": {"objects": 3, "findings": 0}}\n')
    identity = Identity(topic="orders", topic_id="another", value_format="raw")
    tables = ScriptedTables(
        [ListedTable("iceberg", "lake.orders", identity, 1, 1, None, {0: 5}, 2)]
    )
    with running_console(lambda: cluster, reports=reports, tables=tables) as running:
        yield running


def get(address: str, path: str, host: str | None = None) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    try:
        connection.request("GET", path, headers={} if host is None else {"host": host})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def json_of(address: str, path: str) -> dict[str, Any]:
    status, _, body = get(address, path)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def test_overview_adds_the_topics_up(address: str) -> None:
    found = json_of(address, "/api/overview")
    topics = {topic["topic"]: topic for topic in found["topics"]}
    assert topics.keys() == {"orders", "history", "quiet"}
    assert found["total"]["missing_offsets"] == 1000 + 100
    for name in ("local_bytes", "remote_bytes", "total_bytes"):
        assert found["total"][name] == sum(topic[name] for topic in topics.values())
    assert found["error"] is None
    # No metrics endpoints are configured, and the copies are a minute old.
    assert (found["errors"], found["traffic"]) == (None, None)
    metadata = found["metadata_topic"]
    assert metadata["records_per_day"] is None
    assert metadata["restart_s"] == pytest.approx(0.5 * 200_300 / 200_200)


def test_every_kind_of_span_is_on_the_map(address: str) -> None:
    _, damaged = json_of(address, "/api/topics/orders/map")["maps"]
    first, second = damaged["lanes"]
    kinds = {(cell["start"], cell["end"]): cell["kinds"] for cell in first}
    assert kinds[1000, 2000] == ["remote"]
    assert kinds[5000, 6000] == ["missing"]
    assert kinds[8000, 9000] == ["both"]
    assert kinds[10_000, 11_400] == ["local"]
    assert [(cell["start"], cell["kinds"]) for cell in second] == [
        (0, ["deleting"]),
        (2000, ["orphan"]),
        (10_000, ["copying"]),
    ]


def test_map_of_an_earlier_time_is_what_events_tell(address: str) -> None:
    """The segment from 5000 on in partition 1 was deleted an hour and a half ago; see
    scripted_cluster."""
    path = "/api/topics/orders"
    reach = json_of(address, f"{path}/history")
    assert reach["kept_in"] == "__remote_log_metadata_audit"
    assert reach["until_ms"] - reach["since_ms"] == 13 * 1_800_000

    def starts(ago_ms: int) -> tuple[dict[str, Any], dict[int, list[str]]]:
        found = json_of(address, f"{path}/map?at={reach['until_ms'] - ago_ms}")["maps"][1]
        return found, {cell["start"]: cell["kinds"] for cell in found["lanes"][0]}

    before, cells = starts(4 * 1_800_000)
    assert cells[5000] == ["remote"]
    assert max(cells) == 9000
    assert before["unknown_segments"] == 1
    after, cells = starts(1_800_000)
    assert cells[5000] == ["missing"]
    assert after["unknown_segments"] == 0
    # The maps of all times have the same offset axis.
    assert (before["log_first"], before["log_end"]) == (after["log_first"], after["log_end"])
    first, cells = starts(12 * 1_800_000)
    # The second copy has just started.
    assert cells == {0: ["remote"], 1000: ["local"]}
    assert first["lanes"][1][0]["kinds"] == ["copying"]


def test_topic_without_events_has_no_past(address: str) -> None:
    assert json_of(address, "/api/topics/quiet/history")["since_ms"] is None


def test_map_names_leader_epochs(address: str) -> None:
    sound, damaged = json_of(address, "/api/topics/orders/map")["maps"]
    assert sound["leader_epochs"] == [[0, 0]]
    assert damaged["leader_epochs"] == [[0, 0], [1, 3000], [2, 6000], [3, 9000]]


def test_hundred_thousand_segments_are_cells_and_the_missing_one_is_seen(address: str) -> None:
    path = "/api/topics/history/map?columns=500"
    (whole,) = json_of(address, path)["maps"]
    cells = whole["lanes"][0]
    assert len(cells) <= 500
    (damaged,) = (cell for cell in cells if "missing" in cell["kinds"])
    assert sum(cell["segments"] for cell in cells) == 99_999
    zoomed = json_of(address, f"{path}&first={damaged['start']}&end={damaged['end']}")["maps"][0]
    (hole,) = (cell for cell in zoomed["lanes"][0] if cell["kinds"] == ["missing"])
    assert (hole["start"], hole["end"]) == (6_123_400, 6_123_500)
    assert "id" not in hole
    assert all("id" in cell for cell in zoomed["lanes"][0] if cell is not hole)


def test_segment_has_all_its_facts(address: str) -> None:
    _, damaged = json_of(address, "/api/topics/orders/map")["maps"]
    cell = damaged["lanes"][0][0]
    facts = json_of(address, f"/api/topics/orders/partitions/1/segments/{cell['id']}")
    assert (facts["start_offset"], facts["end_offset"], facts["state"]) == (
        1000,
        1999,
        "COPY_SEGMENT_FINISHED",
    )
    assert facts["segment_id"] == cell["id"]
    assert facts["leader_epochs"] == {"0": 1000}
    assert len(facts["objects"]) == 3


def test_groups_say_how_far_behind_they_are_and_what_they_read(address: str) -> None:
    backfill, billing = json_of(address, "/api/groups")["groups"]
    assert (backfill["lag"], backfill["remote_lag"]) == (8_000_050, 7_999_900)
    assert (backfill["reads_from"], backfill["age_s"]) == ({"the remote tier": 1}, 60)
    assert (billing["lag"], billing["remote_lag"], billing["age_s"]) == (200, 0, None)
    assert billing["reads_from"] == {"the local tier": 1, "the end of the log": 1}
    # The age lies between those of the newest records of its segment and of the segment before.
    # Here all are equal.
    assert (backfill["age_s_max"], billing["age_s_max"]) == (60, 60)
    assert backfill["remote_topics"] == [{"topic": "history", "traffic": None}]
    assert billing["remote_topics"] == []
    first, second = json_of(address, "/api/groups/billing")["by_partition"]
    assert (first["partition"], first["lag"], first["age_s"]) == (0, 200, None)
    assert (second["partition"], second["lag"], second["age_s"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("committed", "lag", "reads_from"),
    [
        ([150], -50, {"offsets beyond the end": 1}),
        ([150, 100], -50, {"offsets beyond the end": 1, "the end of the log": 1}),
        # What is left elsewhere is seen.
        ([150, 80], 20, {"offsets beyond the end": 1, "the local tier": 1}),
    ],
)
def test_a_commit_beyond_the_end_is_a_negative_lag(
    committed: list[int], lag: int, reads_from: dict[str, int]
) -> None:
    cluster = ScriptedCluster()
    places = {TopicPartition("anew", n): offset for n, offset in enumerate(committed)}
    for _ in places:
        cluster.add("anew", [], local_tier(0, 0, 100, 100))
    cluster.groups = [GroupState("readers", "Stable", "classic", places)]
    (row,) = group_rows(cluster.groups, cluster.read(), GroupReading(GroupProgress(), None))
    assert (row["lag"], row["remote_lag"], row["reads_from"]) == (lag, 0, reads_from)
    assert (row["age_s"] == 0.0) == (lag < 0)


def test_group_that_reads_from_the_remote_tier_has_its_throughput() -> None:
    """The group reads 1000 offsets in 10 s. The topic's segments have 100 offsets in 100,000
    bytes."""
    cluster, clock = damaged_cluster(1000), SimClock()
    watched = WatchedCluster(lambda: cluster, clock, 5.0)
    place = TopicPartition("history", 0)
    cluster.groups = [GroupState("g", "Stable", "classic", {place: 20_000})]
    watched.groups()
    clock.advance(10_000)
    cluster.groups = [GroupState("g", "Stable", "classic", {place: 21_000})]
    look = watched.groups().content
    storage = watched.look().content
    assert look is not None
    assert storage is not None
    traffic = {"history": Traffic(reads=2.0, read_bytes=1e6)}
    row = group_detail(look[0], storage, GroupReading(watched.progress, traffic))
    assert row["offsets_per_s"] == 100
    assert row["remote_bytes_per_s"] == pytest.approx(100_000)
    (topic,) = row["remote_topics"]
    assert (topic["topic"], topic["traffic"]["reads"]) == ("history", 2.0)
    assert row["by_partition"][0]["offsets_per_s"] == 100


def test_overview_has_the_cost_of_requests() -> None:
    storage = damaged_cluster(1).read()
    hour = {ALL_TOPICS: Traffic(copies=1, reads=4)}
    minutes = {ALL_TOPICS: Traffic(reads=7)}
    look = MetricsLook({}, minutes, hour, 5)
    traffic = overview(storage, price_list("s3-standard"), look)["traffic"]
    assert (traffic["reads"], traffic["since_ms"]) == (7, 5)
    assert (traffic["puts_per_month"], traffic["gets_per_month"]) == (7_776_000, 10_368_000)
    assert traffic["cost_per_month"] == pytest.approx(7776 * 0.005 + 10_368 * 0.0004)
    assert overview(storage, price_list("0.02"), look)["traffic"]["cost_per_month"] is None


def test_answers_say_why_what_is_left_and_what_it_costs(address: str) -> None:
    found = json_of(address, "/api/answers")
    orders = next(each for each in found["topics"] if each["topic"] == "orders")
    assert sum(hold["bytes"] for hold in orders["holds"]) == orders["local_bytes"]
    causes = {hold["cause"]: hold for hold in orders["holds"]}
    copying = causes["being copied"]
    assert (copying["worst_partition"], copying["first_offset"]) == (1, 10_000)
    assert "local.retention.ms" in causes["local retention"]["remedy"]
    left = {(each["topic"], each["cause"]): each for each in found["leftovers"]}
    assert left["orders", "upload was not finished"]["first_offset"] == 2000
    assert found["sweep_command"] == SWEEP_COMMAND
    # All copies are a minute old, so no growth can be forecast.
    assert orders["forecast_cost_per_month"] == [None, None, None]
    assert orders["cost_per_month"] == pytest.approx(orders["remote_bytes"] / 2**30 * 0.023)


def test_answers_name_the_groups_that_are_behind_and_what_helps() -> None:
    cluster, place = ScriptedCluster(), TopicPartition("jobs", 0)
    cluster.add("jobs", [], local_tier(10, 10, 100, 100))
    old = [remote_segment(1, 0, 49, age_ms=7_200_000), remote_segment(2, 50, 79, age_ms=7_100_000)]
    cluster.add("old", old, local_tier(0, 80, 100, 100))
    share = {place: ShareOffset(20, 70)}

    def group(name: str, offset: int, state: str = "Stable") -> GroupState:
        return GroupState(name, state, "classic", {place: offset})

    def workers(offset: int) -> GroupState:
        return GroupState("workers", "Stable", "share", {place: offset}, share=share)

    lost = GroupState("lost", "Stable", "classic", {}, error="the coordinator is loading")
    before = [group("stands", 50), group("moves", 50), workers(20)]
    groups = [
        *(group("stands", 50), group("moves", 60), workers(20), lost),
        *(group("done", 100), group("left", 40, "Empty"), group("deleted", 5)),
        GroupState("reads history", "Stable", "classic", {TopicPartition("old", 0): 60}),
    ]
    progress = GroupProgress()
    progress.note(before, 0)
    progress.note(groups, 10_000)
    early = group_answers(groups, cluster.read(), GroupReading(progress, None))
    assert "it does not move" not in {row["cause"] for row in early}
    progress.note(groups, WINDOW_MS)
    rows = group_answers(groups, cluster.read(), GroupReading(progress, None))
    assert [(row["group"], row["cause"]) for row in rows] == [
        ("lost", "its offsets are unknown"),
        ("deleted", "its next records were deleted"),
        ("left", "nobody reads"),
        ("workers", "it does not move"),
        ("stands", "it does not move"),
        ("reads history", "it is far behind"),
    ]
    remedies = {row["group"]: row["remedy"] for row in rows}
    assert remedies["lost"] == "the coordinator is loading"
    assert "share.delivery.count.limit" in remedies["workers"]
    assert "share" not in remedies["stands"]
    assert {row["group"]: row["lag"] for row in rows}["workers"] == 70


def test_answers_without_groups_say_why(address: str) -> None:
    found = json_of(address, "/api/answers")
    assert (found["groups_error"], type(found["groups"])) == (None, list)


def test_topic_whose_settings_are_not_shown_is_not_called_untiered() -> None:
    storage = damaged_cluster(1).read()
    topic = storage.topics["orders"]
    state = replace(topic.state, is_tiered=False, settings_error="TOPIC_AUTHORIZATION_FAILED")
    unknown = replace(topic, state=state)
    (problem,) = topic_problems(unknown, NOW_MS, {})
    assert (problem["topic"], problem["cause"]) == ("orders", "its settings are unknown")
    assert problem["text"].startswith("TOPIC_AUTHORIZATION_FAILED. ")
    whole = replace(storage, topics={"orders": unknown})
    (row,) = topic_answers(whole, price_list("0.02"), SWEEP_COMMAND, {})["topics"]
    assert row["holds"] == []


def test_local_bytes_that_the_leaders_do_not_show_are_a_problem() -> None:
    topic = damaged_cluster(1).read().topics["orders"]
    error = "CLUSTER_AUTHORIZATION_FAILED"
    hidden = tuple(
        replace(partition, state=replace(partition.state, disks_error=error))
        for partition in topic.partitions
    )
    assert topic_problems(topic, NOW_MS, {}) == []
    (problem,) = topic_problems(replace(topic, partitions=hidden), NOW_MS, {})
    assert problem["cause"] == "local bytes are unknown"
    assert problem["text"].startswith(f"Partition 0, 1: {error}. Their bytes on disks count as 0.")


def test_partitions_whose_copies_wait_are_named_the_largest_first() -> None:
    cluster, mib = ScriptedCluster(), 1 << 20
    copied = [remote_segment(1, 0, 999, size=mib)]
    cluster.add("stuck", copied, local_tier(0, 0, 1000, mib))
    cluster.add("stuck", [], local_tier(0, 0, 3000, 3 * mib))
    cluster.add("stuck", [], local_tier(0, 0, 5000, 5 * mib))
    signs = {"stuck": CopySigns(failures=2, lag_bytes=8 * mib)}
    (problem,) = storage_problems(cluster.read(), signs)
    assert problem["partitions"] == [2, 1]
    assert problem_line(problem).startswith("stuck, copies fail, partition 2, 1, 8.0 MiB: ")


def test_failed_copies_are_the_first_thing_that_is_said() -> None:
    cluster = damaged_cluster(1)
    mib = 1 << 20
    cluster.add("stuck", [], local_tier(0, 0, 4000, 3 * mib))
    signs = {"stuck": CopySigns(failures=18, lag_bytes=2 * mib)}
    (problem,) = storage_problems(cluster.read(), signs)
    assert (problem["topic"], problem["cause"]) == ("stuck", "copies fail")
    assert (problem["bytes"], problem["failures"]) == (2 * mib, 18)
    assert topic_problems(cluster.read().topics["orders"], NOW_MS, signs) == []
    answers = topic_answers(cluster.read(), price_list("0.02"), SWEEP_COMMAND, signs)
    assert answers["topics"][0]["topic"] == "stuck"
    assert [hold["cause"] for hold in answers["topics"][0]["holds"]] == [
        "copies fail",
        "active segment",
    ]
    # Without metrics nothing tells a failure from a lag, and that is what is said.
    unknown = topic_answers(cluster.read(), price_list("0.02"), SWEEP_COMMAND, {})
    stuck = next(each for each in unknown["topics"] if each["topic"] == "stuck")
    waits = next(each for each in stuck["holds"] if each["cause"] == "copying is behind")
    assert "--metrics" in waits["remedy"]
    sure = {"stuck": CopySigns(lag_bytes=2 * mib)}
    known = topic_answers(cluster.read(), price_list("0.02"), SWEEP_COMMAND, sure)
    stuck = next(each for each in known["topics"] if each["topic"] == "stuck")
    waits = next(each for each in stuck["holds"] if each["cause"] == "copying is behind")
    assert "without a failed one" in waits["remedy"]


def test_lag_of_a_topic_is_shared_among_its_partitions() -> None:
    cluster = ScriptedCluster()
    for size in (100, 300):
        cluster.add("t", [], local_tier(0, 0, 40, size))
    signs = {"t": CopySigns(failures=1, lag_bytes=200)}
    (topic,) = topic_answers(cluster.read(), price_list("1"), SWEEP_COMMAND, signs)["topics"]
    assert {hold["cause"]: hold["bytes"] for hold in topic["holds"]} == {
        "copies fail": 200,
        "active segment": 200,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/topics/none", 404),
        ("/api/topics/orders/partitions/0/segments/short", 400),
        ("/api/groups/none", 404),
        (f"/api/topics/orders/partitions/0/segments/{'A' * 22}", 404),
        ("/api/topics/orders/map?columns=0", 400),
        ("/api/topics/orders/map?columns=100000", 400),
        ("/api/topics/orders/map?first=7&end=7", 400),
        ("/api/topics/orders/map?first=x", 400),
        ("/static/../app.py", 404),
        (f"/api/topics/orders/partitions/{'9' * 5000}/segments/{'A' * 22}", 404),
        (f"/api/topics/orders/partitions/x/segments/{'A' * 22}", 404),
    ],
)
def test_request_that_names_nothing_says_so(address: str, path: str, status: int) -> None:
    found, _, body = get(address, path)
    assert found == status
    assert json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/", "/api/overview", "/static/console.js", "/api/topics/none"])
def test_every_answer_keeps_the_browser_here(address: str, path: str) -> None:
    _, headers, _ = get(address, path)
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_defect_is_answered_as_json() -> None:
    class Defective(ScriptedCluster):
        def read(self) -> ClusterStorage:
            raise AssertionError("a defect")

    cluster = Defective()
    with running_console(lambda: cluster) as defective:
        status, headers, body = get(defective, "/api/overview")
    assert status == 500
    assert "its log has the reason" in json.loads(body)["error"]
    assert headers["content-security-policy"]


@pytest.mark.parametrize(("path", "root"), [("/none", "./"), ("/api/topics/none", "../../")])
def test_browser_at_an_unknown_address_gets_a_page_with_ways_back(
    address: str, path: str, root: str
) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    connection.request("GET", path, headers={"accept": "text/html,*/*;q=0.8"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert (answer.status, answer.headers.get_content_type()) == (404, "text/html")
    assert answer.headers["content-security-policy"]
    assert f'<a href="{root}#/">Overview</a>' in body
    assert json.loads(get(address, path)[2])["error"]


def test_address_in_the_missing_page_is_text(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    connection.request("GET", "/%3Cscript%3E", headers={"accept": "text/html"})
    body = connection.getresponse().read()
    connection.close()
    assert b"&lt;script&gt;" in body
    assert b"<script" not in body


def test_console_names_the_options_of_commands_for_its_cluster(address: str) -> None:
    assert json_of(address, "/api/console")["client_arguments"] == CLIENT_ARGUMENTS


def test_another_host_name_is_refused(address: str) -> None:
    """DNS rebinding: a foreign page whose host name resolves to this address sends that name."""
    assert get(address, "/api/overview", host="evil.example")[0] == 400


def test_login_is_asked_for_everything() -> None:
    def status(path: str, authorization: str | None) -> int:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
        headers = {} if authorization is None else {"authorization": authorization}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 401:
            assert (answer.headers["www-authenticate"] or "").startswith("Basic realm=")
            assert answer.headers["content-security-policy"]
        connection.close()
        return answer.status

    right = "Basic " + base64.b64encode(b"reader:x:y").decode()
    wrong = "Basic " + base64.b64encode(b"reader:x").decode()
    with running_console(lambda: damaged_cluster(1), credentials={b"reader": b"x:y"}) as address:
        for path in ("/", "/static/console.js", "/api/overview", "/api/topics/orders"):
            assert [status(path, each) for each in (None, wrong, "Bearer x", "Basic *", right)] == [
                *([401] * 4),
                200,
            ]


def test_failed_logins_are_followed_by_a_delay() -> None:
    clock = SimClock()

    def status(address: str, password: str) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
        token = base64.b64encode(f"reader:{password}".encode()).decode()
        connection.request("GET", "/api/", headers={"authorization": f"Basic {token}"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers["retry-after"]

    credentials = {b"reader": b"right"}
    with running_console(ScriptedCluster, credentials=credentials, clock=clock) as address:
        tries = [status(address, f"{number}") for number in range(50)]
        assert tries[: FAILURES_FREE + 1] == [(401, None)] * (FAILURES_FREE + 1)
        assert set(tries[FAILURES_FREE + 1 :]) == {(429, "1")}
        # Before the time has come the right password is no better, or tries would go on.
        assert status(address, "right") == (429, "1")
        clock.advance(1000)
        assert status(address, "right") == (200, None)


def test_nothing_is_changed_by_any_method(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    for method in ("POST", "PUT", "DELETE"):
        connection.request(method, "/api/overview")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
    connection.close()


def test_cluster_that_never_answered_is_a_503() -> None:
    def refused() -> ScriptedCluster:
        raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9")

    with running_console(refused) as address:
        status, _, body = get(address, "/api/overview")
    assert status == 503
    assert "no broker is reachable" in json.loads(body)["error"]


def test_document_describes_the_routes(address: str) -> None:
    document = json_of(address, "/api/openapi.json")
    assert document == openapi_document()
    sound, _ = json_of(address, "/api/topics/orders/map")["maps"]
    names = {
        "topic": "orders",
        "partition": "0",
        "id": sound["lanes"][0][0]["id"],
        "group": "billing",
        "broker": "1",
        "name": "sweep-1.jsonl",
        "table": "lake.orders",
    }
    for path in document["paths"]:
        if path.endswith(("/tail", "/download")):  # they are streams
            continue
        json_of(address, path.format(**names))


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_pages_name_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "://" not in text
    assert " style=" not in text
