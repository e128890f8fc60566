"""DeleteTopics by name and by id, and an error for each topic that is not deleted."""

from __future__ import annotations

import datetime
import uuid

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.broker import BrokerConfig
from isotherm.protocol.api_keys import ApiKey

TIMEOUT = datetime.timedelta(seconds=1)


@pytest.fixture
def topic(broker):
    broker.controller.create_topics([NewTopic(name="t")])
    return broker.controller.image.topics_by_name["t"]


def delete(broker, version, *topics):
    fields = {
        "topic_names": topics,
        "topics": [{"name": t, "topic_id": None} if isinstance(t, str) else t for t in topics],
    }
    return broker.call(ApiKey.DELETE_TOPICS, version, timeout=TIMEOUT, **fields).responses


@pytest.mark.parametrize("version", range(1, 7))
def test_topic_is_deleted_by_name_and_an_unknown_one_is_an_error(broker, topic, version):
    gone, unknown = delete(broker, version, "t", "nope")
    assert (gone.name, gone.error_code) == ("t", ErrorCode.none)
    assert (unknown.name, unknown.error_code) == ("nope", ErrorCode.unknown_topic_or_partition)
    assert broker.controller.image.topics_by_name == {}


@pytest.mark.parametrize("version", range(1, 7))
def test_empty_name_is_a_topic_that_is_not_there(broker, topic, version):
    empty, gone = delete(broker, version, "", "t")
    assert (empty.name, empty.error_code) == ("", ErrorCode.unknown_topic_or_partition)
    assert gone.error_code is ErrorCode.none


def test_topic_is_deleted_by_id(broker, topic):
    unknown_id = uuid.UUID(int=5)
    gone, unknown = delete(
        broker,
        6,
        {"name": None, "topic_id": topic.topic_id},
        {"name": None, "topic_id": unknown_id},
    )
    assert (gone.name, gone.topic_id, gone.error_code) == ("t", topic.topic_id, ErrorCode.none)
    assert (unknown.topic_id, unknown.error_code) == (unknown_id, ErrorCode.unknown_topic_id)


def test_topic_given_by_name_and_id_or_by_neither_is_an_invalid_request(broker, topic):
    both, neither, gone = delete(
        broker,
        6,
        {"name": "t", "topic_id": topic.topic_id},
        {"name": None, "topic_id": None},
        "t",
    )
    assert both.error_code is ErrorCode.invalid_request
    assert neither.error_code is ErrorCode.invalid_request
    assert gone.error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, ErrorCode.invalid_request), (3, ErrorCode.topic_deletion_disabled)],
)
def test_deletion_that_is_disabled_has_the_code_its_version_knows(broker, topic, version, code):
    broker.configure(BrokerConfig(delete_topic_enable=False))
    (result,) = delete(broker, version, "t")
    assert result.error_code is code
    assert "t" in broker.controller.image.topics_by_name
