"""Isotherm refuses requests as Apache Kafka does; both brokers get the same raw requests.

For versions and APIs that are not supported, the answers must be the same bytes, or both brokers
must close the connection. For valid requests about unknown, illegal or too many things
(`refused_requests.jsonl`), the error codes must be the same; if Kafka gives a message, Isotherm
does too, and names the thing. Intended differences are listed here with their reasons, and must
remain (docs/decisions/0020-error-responses-are-kafkas.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import SERVED
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import KafkaOracle
from oracle.raw_requests import (
    CLOSED,
    Outcome,
    ask,
    outcomes,
    read_answer,
    request_frame,
    request_header,
)
from oracle.topics import wait_until

TIMEOUT_S = 300
FIRST_FLEXIBLE_API_VERSIONS = 3
SETTINGS = {"auto.create.topics.enable": "false", "transaction.state.log.num.partitions": "1"}
# Kafka knows these keys, on its controllers.
CONTROLLERS_KEYS = frozenset({52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 82})
SHARE_PARTITION = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
MAKE_INTERNAL_TOPICS: list[tuple[int, int, dict[str, Any]]] = [
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": ["g"]}),
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": ["t"]}),
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 2, "coordinator_keys": [SHARE_PARTITION]}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["nobody"]}),
    (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["nobody"]}),
]


class Case(NamedTuple):
    name: str
    api: str
    version: int
    fields: Mapping[str, Any]

    @property
    def frame(self) -> bytes:
        return request_frame(ApiKey[self.api], self.version, self.fields)


CASES = [
    Case(**json.loads(line))
    for line in Path(__file__).with_name("refused_requests.jsonl").read_text("utf-8").splitlines()
]

# Answers in which Isotherm differs, with the reason; the decision record has all of them.
DIFFERENT: Mapping[str, str] = {
    "create collide": "Kafka makes both topics, whose metrics then have one name",
    "alter op 9": "UNKNOWN_SERVER_ERROR explains nothing",
    "feature dup": "one of two levels would be dropped without a word",
    "quota nan": "no rate is above or below it",
    "quota dup type": "one of two names would be dropped without a word",
    "list offsets iso 5": "UNKNOWN_SERVER_ERROR helps nobody: what is not 1 is read_uncommitted",
    "produce byte behind": "bytes that the client sent would be dropped without a word",
    "produce no such codec": "UNKNOWN_SERVER_ERROR explains nothing, and clients send it again",
    "produce compressed garbage": "UNKNOWN_SERVER_ERROR explains nothing, and clients send it"
    " again",
    "produce negative count": "the header is damaged whatever the records are",
}


@pytest.fixture(scope="module")
def servers(kafka: KafkaOracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Isotherm and Kafka, set up alike."""
    with EmbeddedBroker(tmp_path_factory.mktemp("isotherm"), SETTINGS) as isotherm:
        both = [isotherm.bootstrap_servers, kafka.bootstrap_server]
        for each in both:
            admin = AdminClient({"bootstrap.servers": each})
            admin.create_topics([NewTopic("known", 2, 1)])["known"].result(TIMEOUT_S)
            for api, version, fields in MAKE_INTERNAL_TOPICS:
                ask_until_available(each, api, version, fields)
        yield both


def ask_until_available(server: str, api: int, version: int, fields: Mapping[str, Any]) -> None:
    """Repeat a request while it is retriable:

    Kafka creates its internal topics at their first use.
    """
    not_yet = {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
    frame = request_frame(api, version, fields)

    def is_available() -> bool:
        answer = ask(server, frame)
        assert isinstance(answer, bytes)
        found = outcomes(read_answer(api, version, answer))
        return not_yet.isdisjoint(result.error_code for result in found.values())

    wait_until(is_available, "the coordinator")


def unserved() -> list[tuple[int, int]]:
    versions = [
        (int(key), version)
        for key, (low, high) in SERVED.items()
        for version in sorted({low - 1, high + 1, high + 2, -1, 32767, -32768})
        if not low <= version <= high
    ]
    return versions + [(key, 0) for key in sorted({-1, 93, 32767, -32768} | CONTROLLERS_KEYS)]


def test_requests_that_are_not_served_get_the_same_bytes_or_are_hung_up_on(
    servers: list[str],
) -> None:
    differences = []
    for key, version in unserved():
        header = request_header(key, version, is_flexible=False)
        for frame in (header, header + b"\0", header + bytes(20)):
            ours, theirs = (ask(server, frame) for server in servers)
            if ours != theirs or (key != ApiKey.API_VERSIONS and ours != CLOSED):
                differences.append((key, version, len(frame), ours, theirs))
    assert differences == []


def test_cut_requests_are_hung_up_on(servers: list[str]) -> None:
    differences = []
    for case in CASES:
        frame = case.frame
        # At its end a flexible request has tagged fields, of the message and of what it ends in.
        ours, theirs = (ask(server, frame[: len(frame) - 1]) == CLOSED for server in servers)
        if (ours, theirs) != (True, True):
            differences.append((case.name, ours, theirs))
    assert differences == []


def found(server: str, case: Case) -> dict[str, Outcome] | str:
    answer = ask(server, case.frame)
    if isinstance(answer, str):
        return answer
    return outcomes(read_answer(ApiKey[case.api], case.version, answer))


def codes(answer: dict[str, Outcome] | str) -> dict[str, str] | str:
    if isinstance(answer, str):
        return answer
    return {path: ErrorCode(outcome.error_code).name for path, outcome in answer.items()}


def explained(answer: dict[str, Outcome] | str) -> set[str]:
    if isinstance(answer, str):
        return set()
    return {path for path, each in answer.items() if each.error_code != 0 and each.error_message}


def test_refused_requests_get_kafkas_error_codes_and_are_explained_where_kafka_explains(
    servers: list[str],
) -> None:
    differences = {}
    for case in CASES:
        ours, theirs = (found(server, case) for server in servers)
        if codes(ours) != codes(theirs) or not explained(ours) >= explained(theirs):
            differences[case.name] = f"{case.name}\n  isotherm {ours}\n  kafka    {theirs}"
    unexpected = [each for name, each in differences.items() if name not in DIFFERENT]
    assert not unexpected, "\n".join(unexpected)
    assert differences.keys() == DIFFERENT.keys()


@pytest.mark.parametrize("name", ["alter readers 4", "alter copiers 21"])
def test_pool_that_changes_too_much_is_refused_in_kafkas_words(
    servers: list[str], name: str
) -> None:
    case = next(each for each in CASES if each.name == name)
    (ours,), (theirs,) = (found(server, case).values() for server in servers)
    assert ours.error_message in theirs.error_message
