"""Fetch sessions against Kafka's FetchSession (KIP-227). The names are Kafka's."""

from __future__ import annotations

import random
import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.fetch_reads import PartitionRead
from isotherm.broker.partitions.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INT32_MAX,
    FetchContext,
    FetchSessionCache,
    next_epoch,
)
from isotherm.protocol.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

EVICTION_MS = 1000


def cache(slots: int = 2, partitions: int = 100) -> FetchSessionCache:
    return FetchSessionCache(
        random.Random(0), slots_max=slots, eviction_ms=EVICTION_MS, partitions_max=partitions
    )


def request(
    session_id: int,
    epoch: int,
    *offsets: tuple[int, int],
    forget: tuple[int, ...] = (),
    topic_id: uuid.UUID | None = None,
    replica_id: int = -1,
) -> FetchRequest:
    """A fetch request. `offsets` are (partition, fetch offset) of topic `t`, or of `topic_id`."""
    name = "t" if topic_id is None else None
    partitions = [FetchPartition(partition, offset, 100) for partition, offset in offsets]
    topics = [FetchTopic(name, topic_id, partitions)] if partitions else []
    forgotten = [ForgottenTopic(name, topic_id, list(forget))] if forget else []
    return FetchRequest(replica_id, 0, 1, 1000, 0, session_id, epoch, topics, forgotten, "")


def exchange(
    sessions: FetchSessionCache,
    asked: FetchRequest,
    found: dict[int, FetchPartitionResponse] | None = None,
    *,
    version: int = 12,
    now_ms: int = 0,
) -> FetchResponse:
    """The answer to a request. `found` has the responses of some partitions; the others have no
    news."""
    context = sessions.context(asked, version, now_ms, None)
    return respond(context, found or {}, now_ms)


def respond(
    context: FetchContext, found: dict[int, FetchPartitionResponse], now_ms: int = 0
) -> FetchResponse:
    quiet = FetchPartitionResponse(0, 0, 5, 5, 0)
    targets = context.targets()
    reads = []
    for target in targets:
        index = target.key.partition
        response = found.get(index, quiet._replace(partition=index))
        reads.append(PartitionRead(response, is_at_end=index not in found))
    return context.respond(targets, reads, now_ms)


def begin(sessions: FetchSessionCache, size: int = 3, **more: Any) -> int:
    now_ms = more.pop("now_ms", 0)
    offsets = [(partition, 0) for partition in range(size)]
    return exchange(sessions, request(0, INITIAL_EPOCH, *offsets, **more), now_ms=now_ms).session_id


def partitions_in(response: FetchResponse) -> list[int]:
    return [partition.partition for topic in response.topics for partition in topic.partitions]


def with_records(partition: int) -> FetchPartitionResponse:
    return FetchPartitionResponse(partition, 0, 5, 5, 0, records=(b"records",))


def test_epoch_after_the_largest_is_1() -> None:
    assert [next_epoch(INITIAL_EPOCH), next_epoch(7), next_epoch(INT32_MAX)] == [1, 8, 1]


def test_full_request_is_answered_whole_and_opens_a_session() -> None:
    sessions = cache()
    response = exchange(sessions, request(0, INITIAL_EPOCH, (0, 1), (1, 2)))
    assert partitions_in(response) == [0, 1]
    assert response.session_id > 0
    assert (len(sessions), sessions.partition_count) == (1, 2)


def test_final_epoch_opens_no_session_and_closes_the_named_one() -> None:
    sessions = cache()
    assert exchange(sessions, request(0, FINAL_EPOCH, (0, 0))).session_id == 0
    session_id = begin(sessions)
    response = exchange(sessions, request(session_id, FINAL_EPOCH, (0, 0)))
    assert (partitions_in(response), response.session_id, len(sessions)) == ([0], 0, 0)
    assert sessions.partition_count == 0


def test_initial_epoch_replaces_the_named_session() -> None:
    sessions = cache()
    session_id = begin(sessions)
    renewed = exchange(sessions, request(session_id, INITIAL_EPOCH, (0, 0))).session_id
    assert renewed not in (0, session_id)
    assert len(sessions) == 1


def test_request_without_partitions_opens_no_session() -> None:
    sessions = cache()
    assert exchange(sessions, request(0, INITIAL_EPOCH)).session_id == 0
    assert len(sessions) == 0


def test_incremental_answer_names_only_what_the_client_does_not_know() -> None:
    sessions = cache()
    session_id = begin(sessions)
    assert partitions_in(exchange(sessions, request(session_id, 1))) == []
    moved = {
        0: FetchPartitionResponse(0, 0, 6, 6, 0),
        1: FetchPartitionResponse(1, 0, 5, 5, 2),
        2: with_records(2),
    }
    response = exchange(sessions, request(session_id, 2), moved)
    assert (partitions_in(response), response.session_id) == ([0, 1, 2], session_id)
    known = {index: moved[index]._replace(records=()) for index in moved}
    assert partitions_in(exchange(sessions, request(session_id, 3), known)) == []


def test_error_and_divergence_are_in_every_response_and_the_next_change_too() -> None:
    sessions = cache()
    session_id = begin(sessions)
    bad = {
        0: FetchPartitionResponse(0, ErrorCode.fenced_leader_epoch),
        1: FetchPartitionResponse(1, 0, 5, 5, 0, diverging_epoch=EpochEndOffset(1, 2)),
    }
    assert partitions_in(exchange(sessions, request(session_id, 1), bad)) == [0, 1]
    assert partitions_in(exchange(sessions, request(session_id, 2), bad)) == [0, 1]
    assert partitions_in(exchange(sessions, request(session_id, 3))) == [0, 1]
    assert partitions_in(exchange(sessions, request(session_id, 4))) == []


def test_new_changed_and_forgotten_partitions_are_taken_over() -> None:
    sessions = cache()
    session_id = begin(sessions)
    context = sessions.context(request(session_id, 1, (1, 9), (7, 4), forget=(0, 55)), 12, 0, None)
    assert [
        (target.key.partition, target.request.fetch_offset) for target in context.targets()
    ] == [
        (1, 9),
        (2, 0),
        (7, 4),
    ]
    assert sessions.partition_count == 3
    assert partitions_in(respond(context, {})) == [7]


def test_partition_that_gave_records_is_read_last_next_time() -> None:
    sessions = cache()
    session_id = begin(sessions)
    exchange(sessions, request(session_id, 1), {0: with_records(0)})
    context = sessions.context(request(session_id, 2), 12, 0, None)
    assert [target.key.partition for target in context.targets()] == [1, 2, 0]


def test_session_that_forgets_everything_is_closed() -> None:
    sessions = cache()
    session_id = begin(sessions, 1)
    response = exchange(sessions, request(session_id, 1, forget=(0,)))
    assert (response.error_code, response.session_id, len(sessions)) == (0, 0, 0)


def test_unknown_session_and_wrong_epoch_are_refused() -> None:
    sessions = cache()
    session_id = begin(sessions)
    unknown = exchange(sessions, request(session_id + 1, 1))
    assert unknown.error_code == ErrorCode.fetch_session_id_not_found
    wrong = exchange(sessions, request(session_id, 2))
    assert (wrong.error_code, wrong.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
    assert exchange(sessions, request(session_id, 1)).error_code == ErrorCode.none


def test_answer_after_another_connection_used_the_session_is_refused() -> None:
    sessions = cache()
    session_id = begin(sessions, 1)
    waiting = sessions.context(request(session_id, 1), 12, 0, None)
    exchange(sessions, request(session_id, 2))
    response = respond(waiting, {0: with_records(0)})
    assert response.error_code == ErrorCode.invalid_fetch_session_epoch
    assert (response.session_id, partitions_in(response)) == (session_id, [])


def test_session_with_topic_ids_is_not_gone_on_with_by_name_nor_the_reverse() -> None:
    sessions = cache()
    by_name = begin(sessions)
    by_id = exchange(
        sessions, request(0, INITIAL_EPOCH, (0, 0), topic_id=uuid.UUID(int=1)), version=13
    ).session_id
    for session_id, version in ((by_name, 13), (by_id, 12)):
        response = exchange(sessions, request(session_id, 1), version=version)
        assert response.error_code == ErrorCode.fetch_session_topic_id_error


def test_partition_named_twice_counts_once_with_the_last_offset() -> None:
    sessions = cache()
    context = sessions.context(request(0, INITIAL_EPOCH, (0, 1), (0, 2)), 12, 0, None)
    assert [target.request.fetch_offset for target in context.targets()] == [2]


def test_full_cache_keeps_its_young_sessions() -> None:
    sessions = cache(slots=1)
    first = begin(sessions, 1)
    assert begin(sessions, 9, now_ms=EVICTION_MS) == 0
    assert exchange(sessions, request(first, 1)).error_code == ErrorCode.none


def test_session_unused_for_long_makes_room_the_oldest_first() -> None:
    sessions = cache(slots=2)
    first, second = begin(sessions), begin(sessions)
    exchange(sessions, request(first, 1), now_ms=500)
    assert begin(sessions, 1, now_ms=EVICTION_MS + 1) != 0
    assert exchange(sessions, request(first, 2), now_ms=600).error_code == ErrorCode.none
    gone = exchange(sessions, request(second, 1), now_ms=600)
    assert gone.error_code == ErrorCode.fetch_session_id_not_found


def test_old_session_in_use_makes_room_for_a_larger_one_only() -> None:
    sessions = cache(slots=1)
    first = begin(sessions, 3)
    now_ms = EVICTION_MS + 1
    exchange(sessions, request(first, 1), now_ms=now_ms)
    assert begin(sessions, 2, now_ms=now_ms) == 0
    assert begin(sessions, 4, now_ms=now_ms) != 0


def test_follower_takes_the_place_of_a_consumer_at_any_age() -> None:
    sessions = cache(slots=1)
    begin(sessions, 3)
    follower = begin(sessions, 1, replica_id=2)
    assert follower != 0
    assert begin(sessions, 9) == 0


def test_cache_without_slots_opens_no_session() -> None:
    assert begin(cache(slots=0)) == 0


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = cache(partitions=5)
    session_id = begin(sessions, 3)
    assert begin(sessions, 3) == 0
    grown = exchange(sessions, request(session_id, 1, (10, 0), (11, 0), (12, 0)))
    assert grown.error_code == ErrorCode.fetch_session_id_not_found
    assert sessions.partition_count == 0
