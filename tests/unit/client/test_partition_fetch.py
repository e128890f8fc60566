"""A partition's batches are fetched through moves, restarts and refusals of its brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.client import partition_fetch
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import PLAINTEXT, Login, NodeSecurity
from isotherm.client.partition_fetch import FetchSettings, PartitionFetch
from isotherm.errors import (
    BrokerUnreachableError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    RejectedError,
    RequestTimedOutError,
    SaslAuthenticationError,
)
from isotherm.record.batch import NewRecord, build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.scripted_peer import ScriptedPeer

PLACE = TopicPartition("a", 1)
Answer = Callable[[Any], Mapping[str, Any] | None]


def batch(first: int, count: int = 2) -> bytes:
    records = [NewRecord(5, b"k", b"v%d" % number) for number in range(first, first + count)]
    return bytes(build_batch(records, base_offset=first))


def fetched(data: bytes = b"", **fields: Any) -> dict[str, Any]:
    partition = {
        "partition_index": 1,
        "error_code": ErrorCode.none,
        "high_watermark": 100,
        "preferred_read_replica": -1,
        "records": memoryview(data),
        **fields,
    }
    return {"responses": [{"topic": "a", "partitions": [partition]}]}


def refused(code: ErrorCode) -> dict[str, Any]:
    return fetched(error_code=code)


class Cluster:
    """Brokers by their ids. `leader` is the present one. `answers` has the next answers of each
    broker to a Fetch; without one it sends the batch of the offset."""

    def __init__(self, count: int) -> None:
        self.leader = 0
        self.topic_error = ErrorCode.none
        self.answers: dict[int, list[dict[str, Any] | None]] = {node: [] for node in range(count)}
        self.peers = [ScriptedPeer(self._of(node)) for node in range(count)]

    def _of(self, node: int) -> Answer:
        def answer(request: Any) -> Mapping[str, Any] | None:
            if hasattr(request, "mechanism"):
                return {"mechanisms": ["PLAIN"]}
            if hasattr(request, "auth_bytes"):
                code = ErrorCode.sasl_authentication_failed
                return {"error_code": code, "error_message": "who is ana"}
            if hasattr(request, "allow_auto_topic_creation"):
                return self._metadata()
            if self.answers[node]:
                return self.answers[node].pop(0)
            offset = request.topics[0].partitions[0].fetch_offset
            return fetched(batch(offset - offset % 2))

        return answer

    def _metadata(self) -> dict[str, Any]:
        partition = {
            "partition_index": 1,
            "leader_id": self.leader,
            "error_code": ErrorCode.none if self.leader >= 0 else ErrorCode.leader_not_available,
        }
        is_known = self.topic_error is ErrorCode.none
        return {
            "brokers": [
                {"node_id": node, "host": peer.address.host, "port": peer.address.port}
                for node, peer in enumerate(self.peers)
            ],
            "topics": [
                {
                    "name": "a",
                    "error_code": self.topic_error,
                    "partitions": [partition] if is_known else [],
                }
            ],
        }

    def fetches(self, node: int) -> list[Any]:
        return [request for request in self.peers[node].requests if hasattr(request, "max_wait")]

    def offsets(self, node: int) -> list[int]:
        """The offsets that a broker was asked for."""
        return [fetch.topics[0].partitions[0].fetch_offset for fetch in self.fetches(node)]

    def fetch(
        self,
        *,
        timeout_ms: int = 120_000,
        isolation: int = 0,
        security: NodeSecurity = PLAINTEXT,
        **more: str,
    ) -> PartitionFetch:
        address = self.peers[0].address
        properties = {"bootstrap.servers": f"{address.host}:{address.port}", **more}
        settings = FetchSettings(timeout_ms=timeout_ms, isolation_level=isolation)
        clock = SimClock(auto_advance=True)
        return PartitionFetch(PLACE, properties, security, clock, settings)

    def read(self, start: int, end: int, **given: Any) -> list[int]:
        """The base offsets of the batches of a read."""
        found = self.fetch(**given).batches(start, end)
        return [int(base) for answer in found for base in answer.table["base_offset"]]


@pytest.fixture
def new_cluster() -> Iterator[Callable[[int], Cluster]]:
    made: list[Cluster] = []

    def new(count: int = 1) -> Cluster:
        made.append(Cluster(count))
        return made[-1]

    yield new
    for cluster in made:
        for peer in cluster.peers:
            peer.stop()


New = Callable[..., Cluster]


def test_batches_come_from_the_leader_as_a_consumer_gets_them(new_cluster: New) -> None:
    cluster = new_cluster(2)
    cluster.leader = 1
    assert cluster.read(3, 7, isolation=1) == [2, 4, 6]
    assert cluster.fetches(0) == []
    assert cluster.offsets(1) == [3, 4, 6]
    first = cluster.fetches(1)[0]
    assert (first.replica_id, first.isolation_level, first.rack_id) == (-1, 1, "")
    assert (first.session_id, first.session_epoch, first.min_bytes) == (0, -1, 1)


def test_next_batches_are_requested_before_a_reader_takes_them(new_cluster: New) -> None:
    cluster = new_cluster()
    answers = cluster.fetch().batches(0, 6)
    next(answers)
    next(answers)
    # The second answer was requested before the first was used, and the third is on its way.
    assert cluster.offsets(0)[:2] == [0, 2]
    answers.close()


def test_several_batches_of_an_answer_and_its_aborted_transactions(new_cluster: New) -> None:
    cluster = new_cluster()
    aborted = [{"producer_id": 7, "first_offset": 1}]
    cut = batch(4)[:-3]
    cluster.answers[0] = [fetched(batch(0) + batch(2) + cut, aborted_transactions=aborted)]
    (first, second) = cluster.fetch().batches(0, 5)
    assert first.table["base_offset"].tolist() == [0, 2]
    assert bytes(first.data) == batch(0) + batch(2)
    assert (first.aborted, first.next_offset) == ([(7, 1)], 4)
    assert (second.aborted, second.next_offset) == ([], 6)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
    ],
)
def test_broker_that_does_not_serve_for_the_moment_is_asked_again(
    new_cluster: New, code: ErrorCode
) -> None:
    cluster = new_cluster()
    cluster.answers[0] = [fetched(batch(0)), refused(code), refused(code)]
    assert cluster.read(0, 4) == [0, 2]
    assert cluster.offsets(0) == [0, 2, 2, 2]


def test_partition_is_followed_to_its_new_leader(new_cluster: New) -> None:
    cluster = new_cluster(2)

    cluster.answers[0] = [fetched(batch(0)), refused(ErrorCode.not_leader_or_follower)]
    answers = cluster.fetch().batches(0, 4)
    next(answers)
    cluster.leader = 1
    assert [answer.next_offset for answer in answers] == [4]
    assert cluster.offsets(1) == [2]


def test_lost_connection_is_opened_again_at_the_same_offset(new_cluster: New) -> None:
    cluster = new_cluster()
    cluster.answers[0] = [fetched(batch(0)), None, None]
    assert cluster.read(0, 6) == [0, 2, 4]
    assert cluster.offsets(0) == [0, 2, 2, 2, 4]


def test_other_brokers_name_the_leader_when_the_bootstrap_server_is_gone(new_cluster: New) -> None:
    cluster = new_cluster(2)
    cluster.leader = 1
    cluster.answers[1] = [fetched(batch(0)), None]
    answers = cluster.fetch().batches(0, 4)
    next(answers)
    cluster.peers[0].stop()
    assert [answer.next_offset for answer in answers] == [4]


def test_partition_without_a_leader_is_waited_for(new_cluster: New) -> None:
    cluster = new_cluster()
    cluster.leader = -1
    with pytest.raises(
        RequestTimedOutError, match=r"offset=0 timeout_ms=900 reason='the partition has no leader"
    ):
        cluster.read(0, 2, timeout_ms=900)


def test_silent_brokers_are_given_up_and_each_batch_restarts_the_timeout(new_cluster: New) -> None:
    cluster = new_cluster()
    refusal = refused(ErrorCode.not_leader_or_follower)
    cluster.answers[0] = [*[refusal] * 4, fetched(batch(0)), *[refusal] * 4, fetched(batch(2))]
    assert cluster.read(0, 4, timeout_ms=450) == [0, 2]
    cluster.answers[0] = [refusal] * 9
    with pytest.raises(RequestTimedOutError, match="NOT_LEADER_OR_FOLLOWER"):
        cluster.read(0, 4, timeout_ms=450)


def test_empty_answers_are_no_records_and_are_not_asked_for_without_a_pause(
    new_cluster: New,
) -> None:
    cluster = new_cluster()
    cluster.answers[0] = [fetched(), fetched(), fetched(batch(0))]
    assert cluster.read(0, 2) == [0]
    cluster.answers[0] = [fetched()] * 99
    with pytest.raises(RequestTimedOutError, match="reason='no record'"):
        cluster.read(0, 2, timeout_ms=1000)
    # Ten times a second, of simulated time.
    assert 10 <= len(cluster.fetches(0)) - 3 <= 12


@pytest.mark.parametrize(("timeout_ms", "wait_s"), [(900, 5.0), (30_000, 30.0), (120_000, 60.0)])
def test_waits_of_a_connection_are_bounded(
    new_cluster: New, monkeypatch: pytest.MonkeyPatch, timeout_ms: int, wait_s: float
) -> None:
    waits: list[tuple[float, float]] = []

    def connection(*given: Any, **named: Any) -> NodeConnection:
        waits.append((named["connect_timeout_s"], named["request_timeout_s"]))
        return NodeConnection(*given, **named)

    monkeypatch.setattr(partition_fetch, "NodeConnection", connection)
    assert new_cluster().read(0, 2, timeout_ms=timeout_ms) == [0]
    assert waits == [(wait_s, wait_s)]


def test_refused_login_is_final(new_cluster: New) -> None:
    cluster = new_cluster()
    security = NodeSecurity(login=Login("PLAIN", "ana", "secret"))
    with pytest.raises(SaslAuthenticationError, match=r"user=ana .*reason='who is ana'"):
        next(cluster.fetch(security=security).batches(0, 2))
    assert len(cluster.peers[0].requests) == 2


def test_offsets_that_the_leader_no_longer_has(new_cluster: New) -> None:
    cluster = new_cluster()
    cluster.answers[0] = [refused(ErrorCode.offset_out_of_range)]
    with pytest.raises(OffsetOutOfRangeError, match=r"topic=a partition=1 offset=3"):
        cluster.read(3, 4)


def test_topic_that_is_gone_is_told_from_one_that_a_broker_does_not_know_yet(
    new_cluster: New,
) -> None:
    cluster = new_cluster()
    cluster.topic_error = ErrorCode.unknown_topic_or_partition
    with pytest.raises(OffsetOutOfRangeError, match="no longer have the partition"):
        cluster.read(0, 2)
    asked = len(cluster.peers[0].requests)
    # For five seconds, ten times a second.
    assert 50 <= asked <= 53


def test_refusals_that_will_not_pass(new_cluster: New) -> None:
    cluster = new_cluster()
    cluster.answers[0] = [refused(ErrorCode.topic_authorization_failed)]
    with pytest.raises(RejectedError, match="TOPIC_AUTHORIZATION_FAILED"):
        cluster.read(0, 2)
    cluster.topic_error = ErrorCode.topic_authorization_failed
    with pytest.raises(RejectedError, match="TOPIC_AUTHORIZATION_FAILED"):
        cluster.read(0, 2)
    assert len(cluster.fetches(0)) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refused(ErrorCode.corrupt_message), "CORRUPT_MESSAGE"),
        (fetched(batch(4)[:40]), "no complete batch"),
        (fetched(batch(0)), "ends before its offset"),
    ],
)
def test_damaged_answer_names_its_place(
    new_cluster: New, answer: dict[str, Any], words: str
) -> None:
    cluster = new_cluster()
    cluster.answers[0] = [answer]
    with pytest.raises(CorruptRecordError, match=words) as raised:
        cluster.read(4, 6)
    assert "topic=a partition=1 offset=4" in str(raised.value)


def test_client_with_a_rack_reads_the_replica_that_the_leader_names(new_cluster: New) -> None:
    cluster = new_cluster(3)
    cluster.answers[0] = [fetched(preferred_read_replica=2)]
    assert cluster.read(0, 4, **{"client.rack": "east"}) == [0, 2]
    assert [fetch.rack_id for fetch in cluster.fetches(0)] == ["east"]
    assert cluster.offsets(2) == [0, 2]


def test_replica_that_is_behind_is_left_for_the_leader(new_cluster: New) -> None:
    cluster = new_cluster(2)
    cluster.answers[0] = [fetched(preferred_read_replica=1)]
    cluster.answers[1] = [fetched(batch(0)), refused(ErrorCode.offset_out_of_range)]
    assert cluster.read(0, 4, **{"client.rack": "east"}) == [0, 2]
    # Without a rack, so that it does not name the same replica again.
    assert [fetch.rack_id for fetch in cluster.fetches(0)] == ["east", ""]


def test_brokers_that_cannot_be_reached_are_named(new_cluster: New) -> None:
    cluster = new_cluster()
    cluster.peers[0].stop()
    with pytest.raises(BrokerUnreachableError, match=str(cluster.peers[0].address)):
        cluster.read(0, 2)
