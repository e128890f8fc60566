"""The log cleaner's keys. Their defaults, and the set that changes while running, are Kafka's."""

from __future__ import annotations

import sys

import pytest

from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import config_keys, format_fields
from isotherm.config.dynamic import dynamic_broker_keys
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError


def test_defaults_are_those_of_kafka_but_for_the_size_of_reads() -> None:
    """The defaults are those that DescribeConfigs of Kafka 4.3.1 returns. Kafka's
    log.cleaner.io.buffer.size is 524288."""
    assert format_fields(CleanerConfig()) == {
        "log.cleaner.enable": "true",
        "log.cleaner.threads": "1",
        "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308",
        "log.cleaner.dedupe.buffer.size": "134217728",
        "log.cleaner.io.buffer.size": "4194304",
        "log.cleaner.io.buffer.load.factor": "0.9",
        "log.cleaner.backoff.ms": "15000",
    }


def test_broker_file_sets_the_keys_of_the_cleaner_and_the_topics_defaults() -> None:
    config = parse_broker_config(
        {
            "log.cleaner.threads": "2",
            "log.cleaner.io.max.bytes.per.second": "1e6",
            "log.cleaner.min.cleanable.ratio": "0.2",
            "log.cleaner.delete.retention.ms": "5",
            "log.cleaner.min.compaction.lag.ms": "6",
            "log.cleaner.max.compaction.lag.ms": "7",
        }
    )
    assert config.cleaner.log_cleaner_threads == 2
    assert config.cleaner.log_cleaner_io_max_bytes_per_second == 1e6
    topic = config.topic_defaults
    assert topic.min_cleanable_dirty_ratio == 0.2
    assert (topic.delete_retention_ms, topic.min_compaction_lag_ms) == (5, 6)
    assert topic.max_compaction_lag_ms == 7


@pytest.mark.parametrize(
    ("size", "threads", "holds"),
    [(1024 * 1024, 1, False), (1024 * 1024 + 1, 1, True), (4 * 1024 * 1024, 4, False)],
)
def test_dedupe_buffer_must_be_above_a_mebibyte_per_thread(
    size: int, threads: int, holds: bool
) -> None:
    texts = {
        "log.cleaner.dedupe.buffer.size": str(size),
        "log.cleaner.threads": str(threads),
    }
    if holds:
        assert parse_broker_config(texts).cleaner.dedupe_buffer_size_per_thread == size // threads
    else:
        with pytest.raises(ConfigError, match=r"above 1 MiB.*dedupe\.buffer\.size=\d+.*threads="):
            parse_broker_config(texts)


def test_keys_that_change_while_running_are_those_of_kafka() -> None:
    """Source: Kafka LogCleaner.RECONFIGURABLE_CONFIGS. message.max.bytes is a key of topics."""
    fixed = config_keys(CleanerConfig).keys() - dynamic_broker_keys().keys()
    assert fixed == {"log.cleaner.enable"}


def test_rate_without_bound_is_the_largest_double() -> None:
    text = format_fields(CleanerConfig())["log.cleaner.io.max.bytes.per.second"]
    parsed = parse_broker_config({"log.cleaner.io.max.bytes.per.second": text})
    assert parsed.cleaner.log_cleaner_io_max_bytes_per_second == sys.float_info.max
