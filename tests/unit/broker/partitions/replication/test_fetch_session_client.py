"""The client's side of fetch sessions, with the broker's own session cache as the other side."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.replication.fetch_session_client import FetchSessionClient
from isotherm.protocol.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.types import TopicIdPartition

A, B, C = (TopicIdPartition(uuid.UUID(int=n), name, n % 2) for n, name in enumerate("xyz", 7))


def asked(place: TopicIdPartition, offset: int = 0) -> FetchPartition:
    return FetchPartition(place.partition, offset, 1000, 1, -1, 0)


def answer(*places: TopicIdPartition, session: int = 5, error: int = 0) -> FetchResponse:
    topics = [
        FetchTopicResponse(None, place.topic_id, [FetchPartitionResponse(place.partition)])
        for place in places
    ]
    return FetchResponse(topics, error, session)


def sent(client: FetchSessionClient, **offsets: int) -> tuple[int, int, list[int], list[int]]:
    """The next request: session id and epoch, the ids (as integers) of the topics requested, and
    those of the topics forgotten."""
    wanted = {
        place: asked(place, offsets[place.topic]) for place in (A, B, C) if place.topic in offsets
    }
    request = client.request(wanted)
    assert request.partitions == wanted
    return (
        request.session_id,
        request.session_epoch,
        [topic.topic_id.int for topic in request.topics if topic.topic_id],
        [topic.topic_id.int for topic in request.forgotten_topics if topic.topic_id],
    )


def test_session_sends_what_changed_and_what_went() -> None:
    client = FetchSessionClient()
    assert sent(client, x=0, y=0) == (0, 0, [7, 8], [])
    assert client.on_response(answer(A, B)) == ""
    assert sent(client, x=0, y=0) == (5, 1, [], [])
    assert client.on_response(answer()) == ""
    assert sent(client, x=0, y=3) == (5, 2, [8], [])
    assert client.on_response(answer(A)) == ""
    assert sent(client, y=3, z=1) == (5, 3, [9], [7])
    assert client.on_response(answer(C)) == ""
    assert sent(client, y=3, z=1) == (5, 4, [], [])


def test_topic_made_again_under_its_name_is_another_partition_of_the_session() -> None:
    client = FetchSessionClient()
    again = TopicIdPartition(uuid.UUID(int=99), A.topic, A.partition)
    client.request({A: asked(A)})
    client.on_response(answer(A))
    request = client.request({again: asked(again)})
    assert [topic.topic_id for topic in request.topics] == [again.topic_id]
    assert [topic.topic_id for topic in request.forgotten_topics] == [A.topic_id]


def test_leader_without_sessions_gets_full_requests() -> None:
    client = FetchSessionClient()
    for _ in range(3):
        assert sent(client, x=0) == (0, 0, [7], [])
        assert client.on_response(answer(A, session=0)) == ""


def test_session_that_the_leader_closes_begins_anew() -> None:
    client = FetchSessionClient()
    sent(client, x=0)
    client.on_response(answer(A))
    sent(client, x=0)
    assert client.on_response(answer(session=0)) == ""
    assert sent(client, x=0) == (0, 0, [7], [])


@pytest.mark.parametrize(
    ("error", "name", "next_session"),
    [
        (ErrorCode.fetch_session_id_not_found, "FETCH_SESSION_ID_NOT_FOUND", 0),
        (ErrorCode.invalid_fetch_session_epoch, "INVALID_FETCH_SESSION_EPOCH", 5),
        (ErrorCode.fetch_session_topic_id_error, "FETCH_SESSION_TOPIC_ID_ERROR", 5),
        (ErrorCode.unknown_server_error, "UNKNOWN_SERVER_ERROR", 5),
        (999, "UNKNOWN_CODE_999", 5),
    ],
)
def test_error_of_a_session_begins_a_new_one(error: int, name: str, next_session: int) -> None:
    client = FetchSessionClient()
    sent(client, x=0)
    client.on_response(answer(A))
    sent(client, x=0)
    assert client.on_response(answer(session=0, error=error)) == f"error={name}"
    assert sent(client, x=0) == (next_session, 0, [7], [])


def test_failed_request_closes_the_session() -> None:
    client = FetchSessionClient()
    sent(client, x=0)
    client.on_response(answer(A))
    sent(client, x=0, y=0)
    client.on_failure()
    assert sent(client, x=0, y=0) == (5, 0, [7, 8], [])


def test_answer_with_other_partitions_is_not_used() -> None:
    client = FetchSessionClient()
    sent(client, x=0)
    assert "not requested" in client.on_response(answer(A, B))
    assert sent(client, x=0, y=0) == (0, 0, [7, 8], [])
    assert "lacks" in client.on_response(answer(A))
    assert sent(client, x=0) == (0, 0, [7], [])
    client.on_response(answer(A))
    sent(client, x=0)
    assert "not requested" in client.on_response(answer(B))
    assert sent(client, x=0) == (5, 0, [7], [])


def test_session_epoch_begins_again_at_one() -> None:
    client = FetchSessionClient()
    sent(client, x=0)
    client.on_response(answer(A))
    client._epoch = 2**31 - 1
    assert sent(client, x=0)[:2] == (5, 2**31 - 1)
    client.on_response(answer())
    assert sent(client, x=0)[:2] == (5, 1)
