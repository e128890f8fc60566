"""Settings of the topic-based manager. Keys and defaults are Kafka's."""

from __future__ import annotations

import pytest

from isotherm.errors import ConfigError, UnknownConfigError
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings


def test_defaults_are_kafkas() -> None:
    settings = TopicBasedSettings.from_config({})
    assert settings.remote_log_metadata_topic_num_partitions == 50
    assert settings.remote_log_metadata_topic_replication_factor == 3
    assert settings.remote_log_metadata_topic_min_isr == 2
    assert settings.remote_log_metadata_topic_retention_ms == -1
    assert settings.remote_log_metadata_consume_wait_ms == 120_000


def test_client_keys_are_kept_as_they_are() -> None:
    settings = TopicBasedSettings.from_config(
        {
            "remote.log.metadata.common.client.bootstrap.servers": "h:1",
            "remote.log.metadata.topic.num.partitions": "3",
        }
    )
    assert settings.client_properties == {
        "remote.log.metadata.common.client.bootstrap.servers": "h:1"
    }
    assert settings.remote_log_metadata_topic_num_partitions == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("remote.log.metadata.topic.num.partitions", "0"),
        ("remote.log.metadata.topic.retention.ms", "0"),
        ("remote.log.metadata.topic.retention.ms", "-2"),
        ("remote.log.metadata.corrupt.record.policy", "ignore"),
    ],
)
def test_value_out_of_bounds_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        TopicBasedSettings.from_config({name: text})


def test_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownConfigError, match=r"remote\.log\.metadata\.consume\.wait\.ms"):
        TopicBasedSettings.from_config({"remote.log.metadata.consume.wait": "1"})
