"""Answers show nothing of a topic that the client may not describe (Kafka's KafkaApis)."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import uuid
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import guard_of
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader

NO_OPERATIONS = -(2**31)


class Authorizer:
    """Allows every operation on every resource but topics without `open` in their names."""

    def allows(self, asking: Any, operation: Any, kind: Any, name: str, **_: Any) -> bool:
        return kind.name != "TOPIC" or "open" in name

    def allows_cluster(self, *_: Any, **__: Any) -> bool:
        return False

    def allowed(
        self, asking: Any, operation: Any, kind: Any, names: Iterable[str], **_: Any
    ) -> set[str]:
        return {name for name in names if self.allows(asking, operation, kind, name)}


def answered(
    key: ApiKey, version: int, fields: Mapping[str, Any], handled: Mapping[str, Any] | None = None
) -> Any:
    """The guarded answer to a request. `handled` are the fields of what the handler answers."""
    services: Any = SimpleNamespace(
        metadata=SimpleNamespace(image=SimpleNamespace(topics_by_id={}, topics_by_name={}))
    )
    context = RequestContext(services, RequestHeader(key, version, 1, "c"), "::1", "PLAINTEXT")

    async def handle(context: RequestContext, request: Any) -> Any:
        return context.response(handled or {})

    api = dataclasses.replace(APIS[key], handle=handle)
    authorizer: Any = Authorizer()
    request = entity_of(request_class(key, version), fields)
    answer = guard_of(api.access)(authorizer, api, context, request)
    if inspect.isawaitable(answer):
        with pytest.raises(StopIteration) as end:
            answer.__await__().send(None)
        answer = end.value.value
    return answer


@pytest.mark.parametrize("version", range(1, 8))
def test_offset_of_a_hidden_topic_is_unknown(version: int) -> None:
    topics = [{"name": "secret", "partition_indexes": (0,)}]
    answer = answered(
        ApiKey.OFFSET_FETCH,
        version,
        {"group_id": "g", "topics": topics, "require_stable": False},
        {"topics": ()},
    )
    ((partition,),) = (topic.partitions for topic in answer.topics)
    assert partition.error_code is ErrorCode.topic_authorization_failed
    assert (partition.committed_offset, partition.metadata) == (-1, "")


@pytest.mark.parametrize("version", [8, 9])
def test_offset_of_a_hidden_topic_of_a_group_is_unknown(version: int) -> None:
    topics = [{"name": "secret", "partition_indexes": (0,)}]
    group = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}
    answer = answered(
        ApiKey.OFFSET_FETCH,
        version,
        {"groups": [group], "require_stable": False},
        {"groups": [{"group_id": "g", "topics": (), "error_code": ErrorCode.none}]},
    )
    (((partition,),),) = ((topic.partitions for topic in each.topics) for each in answer.groups)
    assert partition.error_code is ErrorCode.topic_authorization_failed
    assert (partition.committed_offset, partition.committed_leader_epoch) == (-1, -1)


def member(topic: str | None, target: str | None) -> dict[str, Any]:
    def assignment(name: str | None) -> dict[str, Any]:
        topics = [{"topic_id": uuid.UUID(int=1), "topic_name": name, "partitions": (0,)}]
        return {"topic_partitions": topics if name else []}

    return {
        "member_id": "m",
        "instance_id": None,
        "rack_id": None,
        "member_epoch": 3,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": (),
        "subscribed_topic_regex": ".*",
        "assignment": assignment(topic),
        "target_assignment": assignment(target),
        "member_type": 1,
    }


@pytest.mark.parametrize(
    ("topic", "target", "is_shown"),
    [
        ("open", "open", True),
        (None, None, True),
        ("secret", "open", False),
        ("open", "secret", False),
    ],
)
def test_group_is_described_with_all_its_topics_or_not_at_all(
    topic: str | None, target: str | None, is_shown: bool
) -> None:
    group = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": "g",
        "group_state": "Stable",
        "group_epoch": 4,
        "assignment_epoch": 4,
        "assignor_name": "uniform",
        "members": [member(topic, target)],
        "authorized_operations": 264,
    }
    request = {"group_ids": ("g",), "include_authorized_operations": True}
    answer = answered(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request, {"groups": [group]})
    (shown,) = answer.groups
    if is_shown:
        assert (shown.error_code, shown.authorized_operations) == (ErrorCode.none, 264)
        return
    assert shown.error_code is ErrorCode.topic_authorization_failed
    assert (shown.group_id, shown.group_state, shown.members) == ("g", "", ())
    assert (shown.group_epoch, shown.assignment_epoch, shown.assignor_name) == (0, 0, "")
    assert shown.authorized_operations == NO_OPERATIONS


def test_users_are_not_said_to_be_missing_without_the_right_to_see_them() -> None:
    request = {"users": [{"name": "alice"}]}
    answer = answered(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
    code = ErrorCode.cluster_authorization_failed
    assert (answer.error_code, answer.error_message) == (code, None)
    assert [
        (result.user, result.error_code, result.error_message) for result in answer.results
    ] == [("", code, None)]


@pytest.mark.parametrize("version", [0, 1])
def test_refused_heartbeat_has_nothing_but_its_error(version: int) -> None:
    fields = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 5,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": datetime.timedelta(seconds=1),
        "subscribed_topic_names": ("secret",),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    answer = answered(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, fields)
    assert answer.error_code is ErrorCode.topic_authorization_failed
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
