"""ACLs allow and refuse the same requests as in Apache Kafka; raw requests go to both brokers.

Both use the rules of Kafka's StandardAuthorizer and the same ACLs for User:ANONYMOUS, which sends
every request in every version. The test compares the error codes of all parts of the answers, and
which parts exist: an item that one broker filters out of a list must be missing in both. Kafka's
own connections are those of User:admin, a super user. It also sends the same requests once,
although each ACL denies them.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.access.acls import ResourceType as Resource
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.errors import ProtocolError
from oracle.raw_requests import ask, outcomes, read_answer, request_frame
from oracle.topics import wait_until
from tests.oracle.access_requests import NOT_ASKED, REQUESTS, fitting
from tests.oracle.access_sides import (
    ADMIN,
    DENY,
    EVERYTHING,
    NAMES,
    OPERATIONS,
    PREFIXED,
    TOPICS,
    Isotherm,
    Kafka,
    Rule,
    ask_as_admin,
    running_sides,
    set_up,
    topic_ids_of,
)
from tests.support.raw_client import RawClient

SCENARIOS: Mapping[str, Sequence[Rule]] = {
    "no ACL": [],
    "everything": EVERYTHING,
    **{
        f"{operation.name} on {kind.name}": [Rule(kind, name, operation)]
        for kind, name in NAMES
        for operation in OPERATIONS[kind]
    },
    "ALL on what is named": [Rule(kind, name, Operation.ALL) for kind, name in NAMES],
    "prefixed": [Rule(kind, name[0], Operation.ALL, pattern=PREFIXED) for kind, name in NAMES[:3]],
    "denied below a wildcard": [
        *EVERYTHING,
        Rule(Resource.TOPIC, "known", Operation.READ, DENY),
        Rule(Resource.TOPIC, "known", Operation.WRITE, DENY),
    ],
    "description denied": [
        *EVERYTHING,
        Rule(Resource.TOPIC, "kn", Operation.DESCRIBE, DENY, PREFIXED),
    ],
    "all denied": [*EVERYTHING, *(Rule(kind, name, Operation.ALL, DENY) for kind, name in NAMES)],
    "another's": [Rule(kind, name, Operation.ALL, principal="User:alice") for kind, name in NAMES],
    "from elsewhere": [Rule(kind, name, Operation.ALL, host="10.0.0.1") for kind, name in NAMES],
    "from here, for everyone": [
        Rule(kind, name, Operation.ALL, host="127.0.0.1", principal="User:*")
        for kind, name in NAMES
    ],
    "group and topic": [
        Rule(Resource.GROUP, "g", Operation.READ),
        Rule(Resource.TOPIC, "known", Operation.READ),
        Rule(Resource.TRANSACTIONAL_ID, "t", Operation.WRITE),
    ],
}


@pytest.fixture(scope="module")
def both(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Isotherm, Kafka]]:
    with running_sides(tmp_path_factory.mktemp("access")) as sides:
        yield sides


Compared: TypeAlias = Callable[[Any], Any]


def found(
    side: Isotherm | Kafka,
    api: ApiKey,
    version: int,
    fields: Mapping[str, Any],
    *,
    as_admin: bool,
    compared: Compared,
) -> Any:
    """What is compared of an answer. By default the error codes by the things that they belong to,
    and the names and operations."""
    frame = request_frame(api, version, fields)
    answer = ask_as_admin(side.admin_server, frame) if as_admin else ask(side.server, frame)
    if isinstance(answer, str):
        return answer
    try:
        response = read_answer(api, version, answer)
    except ProtocolError:
        return answer
    if api in (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS):
        # Kafka creates its internal topics at their first use.
        topics = tuple(
            topic for topic in response.topics if not (topic.name or "").startswith("__")
        )
        response = dataclasses.replace(response, topics=topics)
    return compared(response)


def decided(response: Any) -> Any:
    codes = {path: ErrorCode(each.error_code).name for path, each in outcomes(response).items()}
    return codes, sorted(_shown(response))


_REFUSALS = {each for each in ErrorCode if each.name.endswith("authorization_failed")}
_NAMING = ("group_id", "name", "topic", "transactional_id", "partition_index", "partition")


def _code(field: tuple[str, Any]) -> ErrorCode:
    name, value = field
    return ErrorCode(value) if name.endswith("error_code") else ErrorCode.none


# Texts, and what each broker has of its own. Refused items are told apart by their names.
_NOT_COMPARED = {"error_message", "throttle_time", "topic_id"}


def refused(response: Any) -> Any:
    return sorted(_refused(response))


def _refused(value: Any, path: str = "", *, is_refused: bool = False) -> Iterator[str]:
    if isinstance(value, tuple):
        for each in value:
            yield from _refused(each, path, is_refused=is_refused)
    elif dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        is_refused = is_refused or not _REFUSALS.isdisjoint(map(_code, fields.items()))
        name = next((str(fields[key]) for key in _NAMING if key in fields), "")
        for key, inner in fields.items():
            if key not in _NOT_COMPARED:
                yield from _refused(inner, f"{path}[{name}]/{key}", is_refused=is_refused)
    elif is_refused and value not in (None, "", b""):  # which say the same, as an empty list does
        yield f"{path}={bytes(value) if isinstance(value, memoryview) else value!r}"


def _shown(value: Any, path: str = "") -> Iterator[str]:
    """The information that an answer reveals: authorized operations, and the names in lists."""
    if isinstance(value, tuple):
        for each in value:
            yield from _shown(each, path)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name.endswith("authorized_operations") or field.name in (
                "group_id",
                "transactional_id",
                "topic_config_error_code",
            ):
                yield f"{path}/{field.name}={inner}"
            else:
                yield from _shown(inner, f"{path}/{field.name}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_access_is_decided_as_by_kafka(both: tuple[Isotherm, Kafka], scenario: str) -> None:
    """Each request is sent in its first and its last version."""
    assert_same(both, SCENARIOS[scenario], {api: set(SERVED[api]) for api in REQUESTS})


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_access_is_decided_as_by_kafka_in_every_version(
    both: tuple[Isotherm, Kafka], scenario: str
) -> None:
    every = {api: range(SERVED[api].min, SERVED[api].max + 1) for api in REQUESTS}
    assert_same(both, SCENARIOS[scenario], every)


@pytest.mark.parametrize("scenario", ["no ACL", "description denied"])
def test_refusals_have_kafkas_fields(both: tuple[Isotherm, Kafka], scenario: str) -> None:
    """Every field of a refused item, or answer, in every version. Texts may differ."""
    every = {api: range(SERVED[api].min, SERVED[api].max + 1) for api in REQUESTS}
    assert_same(both, SCENARIOS[scenario], every, compared=refused)


def test_super_user_is_answered_as_by_kafka(both: tuple[Isotherm, Kafka]) -> None:
    denied = [rule._replace(permission=DENY, principal=f"User:{ADMIN}") for rule in EVERYTHING]
    assert_same(both, denied, {api: set(SERVED[api]) for api in REQUESTS}, as_admin=True)


def assert_same(
    both: tuple[Isotherm, Kafka],
    rules: Sequence[Rule],
    versions: Mapping[ApiKey, Iterable[int]],
    *,
    as_admin: bool = False,
    compared: Compared = decided,
) -> None:
    topic_ids = []
    for side in both:
        side.set_acls(EVERYTHING)
        set_up(side.server)
        topic_ids.append(topic_ids_of(side.server))
        side.set_acls(rules)
    differences = []
    for api, requests in REQUESTS.items():
        for version, fields in itertools.product(sorted(versions[api]), requests):
            fitted = [fitting(api, version, fields, ids) for ids in topic_ids]
            if None in fitted:
                continue
            ours, theirs = (
                found(side, api, version, each or {}, as_admin=as_admin, compared=compared)
                for side, each in zip(both, fitted, strict=True)
            )
            if ours != theirs:
                if isinstance(ours, list) and isinstance(theirs, list):
                    ours, theirs = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
                differences.append(
                    f"{api.name} {version} {fitted[0]}\n  isotherm {ours}\n  kafka    {theirs}"
                )
    assert not differences, "\n".join(differences)


def test_every_api_with_a_check_is_asked() -> None:
    assert {ApiKey(key) for key in APIS} - NOT_ASKED == REQUESTS.keys()


@pytest.mark.parametrize(
    "described", [("other",), ("known", "other"), ("knot", "known", "other")], ids=len
)
def test_pattern_subscribes_to_what_may_be_described(
    both: tuple[Isotherm, Kafka], described: tuple[str, ...]
) -> None:
    assigned = []
    for side in both:
        side.set_acls(EVERYTHING)
        set_up(side.server)
        names = {topic_id: name for name, topic_id in topic_ids_of(side.server).items()}
        rules = [Rule(Resource.TOPIC, name, Operation.DESCRIBE) for name in described]
        side.set_acls([*rules, Rule(Resource.GROUP, "*", Operation.READ)])
        topic_ids = assigned_by_pattern(side.server, f"pattern-{len(described)}", len(described))
        assigned.append({names[str(topic_id)] for topic_id in topic_ids})
    assert assigned == [set(described)] * 2


def assigned_by_pattern(server: str, group: str, at_least: int) -> set[uuid.UUID]:
    """The topics of the first assignment that has so many, of a member that subscribes to all."""
    beat = {
        "group_id": group,
        "member_id": str(uuid.uuid4()),
        "rebalance_timeout": 60_000,
        "subscribed_topic_regex": ".*",
        "topic_partitions": [],
    }
    topic_ids: set[uuid.UUID] = set()
    epoch = 0
    with RawClient(server) as client:

        def is_assigned() -> bool:
            nonlocal epoch
            answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **beat, member_epoch=epoch)
            assert answer.error_code is ErrorCode.none, answer
            epoch = answer.member_epoch
            if answer.assignment is not None:
                topic_ids.clear()
                topic_ids.update(
                    partition.topic_id for partition in answer.assignment.topic_partitions
                )
            return len(topic_ids) >= at_least

        wait_until(is_assigned, "the assignment of the member")
        client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **beat | {"member_epoch": -1})
    return topic_ids


@pytest.mark.parametrize(
    ("group", "topics"),
    [("g", ()), ("other", ("known", "other")), ("q", ()), ("q", ("known",)), ("q", TOPICS)],
)
def test_share_consumers_get_what_they_may_read(
    both: tuple[Isotherm, Kafka], group: str, topics: tuple[str, ...]
) -> None:
    answers = []
    for side in both:
        side.set_acls(EVERYTHING)
        set_up(side.server)
        topic_ids = topic_ids_of(side.server)
        side.set_acls(
            [
                Rule(Resource.GROUP, group, Operation.READ),
                *(Rule(Resource.TOPIC, name, Operation.READ) for name in topics),
            ]
        )
        answers.append(share_answers(side.server, topic_ids))
    ours, theirs = answers
    assert ours == theirs


def share_answers(server: str, topic_ids: Mapping[str, str]) -> list[Any]:
    """The errors of a member of the group q that fetches, and of one that acknowledges."""
    named = [
        {"topic_id": topic_ids[name], "partitions": [{"partition_index": 0}]} for name in TOPICS
    ]
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    member = {"group_id": "q", "member_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    fetch = {"min_bytes": 0, "max_records": 10, "batch_size": 10, "forgotten_topics_data": []}
    answers: list[Any] = []
    with RawClient(server) as client:
        for version, api, epoch, fields in [
            (1, ApiKey.SHARE_FETCH, 0, fetch),
            (2, ApiKey.SHARE_FETCH, 1, fetch),
            (1, ApiKey.SHARE_ACKNOWLEDGE, 2, {}),
            (2, ApiKey.SHARE_ACKNOWLEDGE, 7, {}),
            (2, ApiKey.SHARE_ACKNOWLEDGE, -1, {}),
            (1, ApiKey.SHARE_ACKNOWLEDGE, 1, {}),
        ]:
            fetching = api is ApiKey.SHARE_FETCH
            wait = {"max_wait": 10_000} if fetching else {}
            answer = client.ask(
                api, version, **member, **fields, **wait, share_session_epoch=epoch, topics=named
            )
            parts = sorted(
                (names[str(topic.topic_id)], partition.partition_index, partition.error_code.name)
                for topic in answer.responses
                for partition in topic.partitions
            )
            answers.append((api.name, epoch, answer.error_code.name, parts))
    return answers
