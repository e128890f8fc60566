"""What the users of `access_matrix` get from two sides, field by field."""

from __future__ import annotations

import dataclasses
import datetime
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.errors import ProtocolError
from oracle.raw_requests import CLOSED, read_answer, request_frame
from oracle.topics import wait_until
from tests.oracle.access_matrix import users_of
from tests.oracle.access_requests import REQUESTS, fitting, produced
from tests.oracle.access_sides import (
    PASSWORD,
    TOPICS,
    Isotherm,
    Kafka,
    set_up,
    topic_ids_of,
)
from tests.support.raw_client import RawClient

HALF_AN_HOUR_MS = 1_800_000
# Texts, addresses, folders, and numbers that a broker draws at random.
NOT_COMPARED = frozenset(
    {
        "cluster_id",
        "error_message",
        "log_dir",
        "port",
        "session_id",
        "throttle_time",
        "total_bytes",
        "usable_bytes",
    }
)
# The metadata log and the features of each broker are its own.
NOT_COMPARED_OF: Mapping[ApiKey, frozenset[str]] = {
    ApiKey.API_VERSIONS: frozenset(
        {"finalized_features", "finalized_features_epoch", "supported_features"}
    ),
    ApiKey.DESCRIBE_QUORUM: frozenset(
        {
            "high_watermark",
            "listeners",
            "log_end_offset",
            "last_caught_up_timestamp",
            "last_fetch_timestamp",
            "replica_directory_id",
        }
    ),
}
# In a topic's configuration.
ISOTHERMS_KEYS = frozenset({"remote.copy.lag.bytes", "remote.copy.lag.ms"})
NO_TOPIC = str(uuid.UUID(int=0x4D))
_RANDOM = re.compile(r"(?<=raw-)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAMING = (
    "group_id",
    "name",
    "resource_name",
    "topic",
    "transactional_id",
    "partition_index",
    "partition",
)


class Side:
    """A broker, with a connection for each user."""

    def __init__(self, broker: Isotherm | Kafka) -> None:
        self.broker = broker
        self.topic_ids: Mapping[str, str] = {}
        self._clients: dict[str, RawClient] = {}

    def ask(self, user: str, frame: bytes) -> bytes | str:
        client = self._clients.get(user)
        if client is None:
            client = self._clients[user] = RawClient(self.broker.admin_server)
            assert client.log_in_plain(user, PASSWORD).error_code is ErrorCode.none
        try:
            client.send_frame(frame)
            answer = client.receive_frame()
        except ConnectionError:
            answer = None
        if answer is None:
            self._clients.pop(user).close()
            return CLOSED
        return answer

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def begin_transaction(client: RawClient) -> None:
    producer = client.ask(
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactional_id="t",
        transaction_timeout=600_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert producer.error_code is ErrorCode.none
    added = client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": name, "partitions": [0]} for name in ("known", "other")],
    )
    for topic in added.results_by_topic_v3_and_below:
        for partition in topic.results_by_partition:
            assert partition.partition_error_code is ErrorCode.none


def join_classic_group(client: RawClient) -> None:
    joined = client.ask(
        ApiKey.JOIN_GROUP,
        3,
        group_id="group",
        session_timeout=HALF_AN_HOUR_MS,
        rebalance_timeout=HALF_AN_HOUR_MS,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": ""}],
    )
    assert joined.error_code is ErrorCode.none
    synced = client.ask(
        ApiKey.SYNC_GROUP,
        3,
        group_id="group",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": "00"}],
    )
    assert synced.error_code is ErrorCode.none


def join_consumer_group(client: RawClient) -> None:
    beat = {
        "group_id": "gc",
        "member_id": "member",
        "rebalance_timeout": HALF_AN_HOUR_MS,
        "subscribed_topic_names": ["known", "other"],
        "topic_partitions": [],
    }
    api, version = ApiKey.CONSUMER_GROUP_HEARTBEAT, 1
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        answer = client.ask(api, version, **beat, member_epoch=epoch)
        assert answer.error_code is ErrorCode.none, answer
        epoch = answer.member_epoch
        return answer.assignment is not None and len(answer.assignment.topic_partitions) == 2

    wait_until(is_assigned, "the assignment of the member")


def prepare(side: Side) -> None:
    """Make the topics that requests have deleted, and a record in each."""
    server = side.broker.server
    set_up(server)
    side.topic_ids = topic_ids_of(server)
    with RawClient(server) as client:
        topics = [produced(name) for name in TOPICS]
        for topic in topics:
            del topic["topic_id"]
        answer = client.ask(ApiKey.PRODUCE, 9, acks=1, timeout=5000, topic_data=topics)
        for topic in answer.responses:
            assert topic.partition_responses[0].error_code is ErrorCode.none


def answered(side: Side, user: str, api: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    """Every field that is compared, sorted; or how the connection ended."""
    fitted = fitting(api, version, fields, side.topic_ids)
    answer = side.ask(user, request_frame(api, version, fitted or {}))
    if isinstance(answer, str):
        return [answer]
    try:
        response = read_answer(api, version, answer)
    except ProtocolError:
        return [answer.hex()]
    names = {topic_id: name for name, topic_id in side.topic_ids.items()}
    return sorted(_fields(api, response, names))


def _fields(api: ApiKey, value: Any, names: Mapping[str, str], path: str = "") -> Iterator[str]:
    if isinstance(value, tuple):
        for each in value:
            yield from _fields(api, each, names, path)
    elif dataclasses.is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        name = next((str(inner[key]) for key in _NAMING if inner.get(key) is not None), "")
        if name.startswith("__") or name in ISOTHERMS_KEYS:
            return  # Kafka creates its internal topics at their first use.
        for key in inner.keys() - NOT_COMPARED - NOT_COMPARED_OF.get(api, frozenset()):
            yield from _fields(api, inner[key], names, f"{path}[{name}]/{key}")
    elif value is not None:  # which says the same as an empty list
        yield f"{path}={_comparable(value, names)}"


def _comparable(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, memoryview):
        return value.hex()
    if isinstance(value, uuid.UUID):
        return names.get(str(value), NO_TOPIC if str(value) == NO_TOPIC else "a new topic")
    if isinstance(value, datetime.datetime):
        return "1970" if value.year == 1970 else "a time"
    if isinstance(value, str):
        return repr(_RANDOM.sub("a member", value))
    return repr(value)


def differences_of(sides: tuple[Side, Side], api: ApiKey, versions: Iterable[int]) -> list[str]:
    for side in sides:
        prepare(side)
    differences = answers_that_differ(sides, api, versions, requests=REQUESTS[api])
    if api is ApiKey.DELETE_TOPICS:
        for side in sides:
            prepare(side)
    return differences


def answers_that_differ(
    sides: tuple[Side, Side],
    api: ApiKey,
    versions: Iterable[int],
    *,
    requests: Iterable[Mapping[str, Any]],
    not_compared: frozenset[str] = frozenset(),
) -> list[str]:
    """A text for each answer of the first side that is not that of the second. The fields
    `not_compared` are left out, beside NOT_COMPARED."""
    requests = list(requests)
    ours, theirs = sides
    differences = []
    count = 0
    for user in users_of(APIS[api]):
        for version in versions:
            for fields in requests:
                if fitting(api, version, fields, ours.topic_ids) is None:
                    continue
                count += 1
                of_ours, of_theirs = (
                    [
                        line
                        for line in answered(side, user, api, version, fields)
                        if line.partition("=")[0].rpartition("/")[2] not in not_compared
                    ]
                    for side in (ours, theirs)
                )
                if of_ours != of_theirs:
                    differences.append(
                        f"{user} {api.name} {version} {fields}"
                        f"\n  isotherm {sorted({*of_ours} - {*of_theirs})}"
                        f"\n  kafka    {sorted({*of_theirs} - {*of_ours})}"
                    )
    print(f"cases={count} api={api.name}")
    return differences
