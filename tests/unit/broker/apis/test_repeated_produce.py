"""Repeated produce requests have the answers and the effects that each has on a connection of its
own, where nothing is repeated.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from isotherm.broker.apis import repeated_produce
from isotherm.config.topic import TopicConfig
from isotherm.record.batch import build_batch
from isotherm.record.compression import CompressionType
from tests.support.led_topic import delete_topic, lead_topic
from tests.unit.broker.conftest import TOPIC_ID, Parts
from tests.unit.broker.server.dispatch.test_calls_per_request import Client, varint

NOW_MS = 1_700_000_000_000
# The checks of a batch with gzip are left to a thread if it might be large.
CODECS_CHECKED_AT_ONCE = (CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD)


def batch(values: Sequence[bytes], **more: Any) -> bytes:
    return bytes(build_batch([(NOW_MS, None, value, ()) for value in values], **more))


def produce(
    version: int,
    records: bytes,
    *,
    partition: int = 0,
    acks: int = 1,
    correlation_id: int = 1,
    client_id: bytes = b"c",
    transactional_id: bytes | None = None,
    tags: bytes = b"\0",
) -> bytes:
    """A request for one partition. `tags` are those of the partition."""
    head = struct.pack(">hhih", 0, version, correlation_id, len(client_id)) + client_id
    if version < 9:
        name = b"\xff\xff"
        if transactional_id is not None:
            name = struct.pack(">h", len(transactional_id)) + transactional_id
        topic = struct.pack(">hiih1sii", acks, 1000, 1, 1, b"t", 1, partition)
        return head + name + topic + struct.pack(">i", len(records)) + records
    name = b"\0"
    if transactional_id is not None:
        name = varint(len(transactional_id) + 1) + transactional_id
    topic = TOPIC_ID.bytes if version >= 13 else b"\2t"
    body = name + struct.pack(">hi", acks, 1000) + b"\2" + topic + b"\2"
    body += struct.pack(">i", partition) + varint(len(records) + 1) + records + tags
    return head + b"\0" + body + b"\0\0"


class Outcome(NamedTuple):
    answers: list[bytes]
    stored: list[bytes]
    traffic: dict[str, Any]


def outcome(
    directory: Path, requests: Sequence[bytes], *, repeats: bool, config: TopicConfig | None = None
) -> Outcome:
    """With `repeats` all requests come over one connection, else each over its own."""
    parts, answers = Parts(directory), list[bytes]()
    stored, traffic = list[bytes](), dict[str, Any]()

    async def scenario() -> None:
        if config is not None:
            parts.replica_manager.update_config("t", config)
        client = Client(parts, repeats=True)
        for request in requests:
            answers.append((client if repeats else Client(parts, repeats=True)).ask(request))
        for index in (0, 1):
            log = parts.partition(index).log
            stored.append(b"".join(segment.log_path.read_bytes() for segment in log.segments()))
        traffic.update(vars_of(parts.services.traffic.topics["t"]))

    parts.run(scenario)
    parts.close()
    return Outcome(answers, stored, traffic)


def vars_of(traffic: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(traffic):
        return dataclasses.asdict(cast("Any", traffic))
    return {name: getattr(traffic, name) for name in traffic.__slots__}


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that came to a connection with a memory was repeated."""
    found: list[bool] = []
    repeat = repeated_produce._is_plain

    def noted(*arguments: Any) -> bool:
        found.append(repeat(*arguments))
        return found[-1]

    monkeypatch.setattr(repeated_produce, "_is_plain", noted)
    return found


def requests_of(version: int, rng: random.Random, count: int) -> Iterator[bytes]:
    """Requests of all kinds; most are plain."""
    sequence = 0
    for number in range(count):
        values = [rng.randbytes(rng.choice((10, 100, 20_000)))] * rng.randrange(1, 5)
        plain = batch(values)
        damaged = plain[:-1] + bytes([plain[-1] ^ 1])
        more: dict[str, Any] = {"correlation_id": number, "partition": rng.randrange(2)}
        kind = rng.randrange(14)
        if kind < 3:
            records = batch(values, producer_id=7, producer_epoch=0, base_sequence=sequence)
            more["partition"] = 0
            # Now and then the same batch again, or one behind a gap.
            sequence += (len(values), 0, 100)[kind]
        else:
            records = {
                3: batch(values, compression=rng.choice(CODECS_CHECKED_AT_ONCE)),
                4: damaged,
                5: plain[:40],
                6: plain + b"more",
            }.get(kind, plain)
            more |= {
                7: {"acks": -1},
                8: {"client_id": b"another"},
                9: {"partition": 9},
                10: {"tags": b"\1\5\1x"},
            }.get(kind, {})
        yield produce(version, records, **more)


@pytest.mark.parametrize("version", range(3, 14))
def test_requests_over_one_connection_have_the_outcome_of_each_alone(
    tmp_path: Path, version: int, repeated: list[bool]
) -> None:
    requests = list(requests_of(version, random.Random(version), 100))
    together = outcome(tmp_path / "together", requests, repeats=True)
    assert together == outcome(tmp_path / "alone", requests, repeats=False)
    assert sum(repeated) > 20 or version < 5


def repeats_of(
    requests: Sequence[bytes], directory: Path, repeated: list[bool], **more: Any
) -> int:
    """How many requests are repeated. Their outcome is that of each alone."""
    together = outcome(directory / "together", requests, repeats=True, **more)
    count = sum(repeated)
    assert together == outcome(directory / "alone", requests, repeats=False, **more)
    return count


def test_second_of_two_equal_requests_is_repeated(tmp_path: Path, repeated: list[bool]) -> None:
    assert repeats_of([produce(11, batch([b"v"]))] * 2, tmp_path, repeated) == 1


def test_requests_for_partitions_in_turn_are_repeated(tmp_path: Path, repeated: list[bool]) -> None:
    requests = [produce(11, batch([b"v"]), partition=number % 2) for number in range(6)]
    assert repeats_of(requests, tmp_path, repeated) == 4


def test_more_partitions_than_are_kept_are_forgotten(
    tmp_path: Path, repeated: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_produce, "REPEATED_MAX", 1)
    requests = [produce(11, batch([b"v"]), partition=number % 2) for number in range(6)]
    assert repeats_of(requests, tmp_path, repeated) == 0


def test_records_that_may_be_large_when_decompressed_are_not_repeated(parts: Parts) -> None:
    """Their checks would hold up the event loop."""

    async def scenario() -> None:
        client = Client(parts, repeats=True)
        client.ask(produce(11, batch([b"v"], compression=CompressionType.GZIP)))
        kept = client._connection.repeated_requests
        for count, is_repeated in ((10, True), (11, False)):
            records = batch([bytes(100_000)] * count, compression=CompressionType.LZ4)
            frame = memoryview(bytearray(produce(11, records)))
            answer = repeated_produce.repeat(parts.services, (0, 11), frame, kept)
            assert (answer is not None) == is_repeated

    parts.run(scenario)


def test_records_that_may_be_above_their_bound_when_decompressed_are_not_repeated(
    parts: Parts,
) -> None:
    async def scenario() -> None:
        parts.services.config = dataclasses.replace(
            parts.config, message_decompressed_max_bytes=200_000
        )
        client = Client(parts, repeats=True)
        client.ask(produce(11, batch([b"v"], compression=CompressionType.LZ4)))
        kept = client._connection.repeated_requests
        for count, is_repeated in ((1, True), (2, False), (1, True)):
            records = batch([bytes(100_000)] * count, compression=CompressionType.LZ4)
            frame = memoryview(bytearray(produce(11, records)))
            answer = repeated_produce.repeat(parts.services, (0, 11), frame, kept)
            assert (answer is not None) == is_repeated

    parts.run(scenario)


def test_appends_that_need_a_flush_are_not_repeated(tmp_path: Path, repeated: list[bool]) -> None:
    """With flush.messages above 1: an answer here comes at once."""
    config = TopicConfig(flush_messages=100)
    requests = [produce(11, batch([b"v"]))] * 3
    assert repeats_of(requests, tmp_path, repeated, config=config) == 0


def run_with(parts: Parts, change: Callable[[], None]) -> list[bytes]:
    """The answers to two equal requests, before and after a change."""
    answers = list[bytes]()

    async def scenario() -> None:
        client, request = Client(parts, repeats=True), produce(12, batch([b"v"]))
        answers.extend([client.ask(request), client.ask(request)])
        change()
        answers.append(client.ask(request))

    parts.run(scenario)
    return answers


def error_and_offset(answer: bytes) -> tuple[int, int]:
    """Behind size, correlation id, tags, counts, the topic's name and the partition's number."""
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 1 + 1 + 2 + 1 + 4)
    return int(error), int(offset)


def test_partition_of_a_topic_that_was_created_again_is_found_anew(parts: Parts) -> None:
    def create_again() -> None:
        delete_topic(parts.replica_manager, "t")
        lead_topic(parts.replica_manager, "t", TOPIC_ID, {0: 3}, TopicConfig())

    answers = run_with(parts, create_again)
    assert [error_and_offset(answer) for answer in answers] == [(0, 0), (0, 1), (0, 0)]
    assert parts.partition().log.log_end_offset == 1


def test_partition_that_is_gone_is_answered_with_its_error(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        parts.services.metadata = cast(
            "Any", SimpleNamespace(image=SimpleNamespace(brokers={}, topics={}))
        )
        delete_topic(parts.replica_manager, "t")

    answers = run_with(parts, leave)
    unknown_topic_or_partition = 3
    assert error_and_offset(answers[-1]) == (unknown_topic_or_partition, -1)


def test_nothing_is_remembered_where_access_is_checked(parts: Parts) -> None:
    async def scenario() -> None:
        parts.services.authorizer = cast("Any", object())
        context = parts.context(0, 11)._replace(connection=cast("Any", SimpleNamespace()))
        repeated_produce.remember(context, *cast("Any", (None, None, None)))

    parts.run(scenario)


def test_a_request_with_a_record_for_a_record_is_as_the_first(parts: Parts) -> None:
    """The offsets of an answer are its own, not those of the request that was remembered."""

    async def scenario() -> None:
        client = Client(parts, repeats=True)
        answers = [
            client.ask(produce(12, batch([b"v"] * 3), correlation_id=number)) for number in range(4)
        ]
        assert [error_and_offset(answer) for answer in answers] == [(0, 0), (0, 3), (0, 6), (0, 9)]
        assert [struct.unpack_from(">i", answer, 4)[0] for answer in answers] == [0, 1, 2, 3]

    parts.run(scenario)
