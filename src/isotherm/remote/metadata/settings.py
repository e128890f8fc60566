"""Settings of the topic-based metadata manager: the keys under `rlmm.config.`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from isotherm.config.definition import (
    INT,
    LONG,
    SHORT,
    STRING,
    Check,
    at_least,
    key,
    one_of,
    parse_fields,
)

CLIENT_PREFIXES = (
    "remote.log.metadata.common.client.",
    "remote.log.metadata.consumer.",
    "remote.log.metadata.producer.",
    "remote.log.metadata.admin.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBasedSettings:
    """Kafka's keys, and below them Isotherm's own. client_properties holds the keys of
    CLIENT_PREFIXES as they are: they configure a client where the topic is not in process."""

    remote_log_metadata_topic_num_partitions: int = key(
        INT, 50, "Partitions of the metadata topic when it is made.", check=at_least(1)
    )
    remote_log_metadata_topic_replication_factor: int = key(
        SHORT, 3, "Accepted for compatibility: a single broker has one replica.", check=at_least(1)
    )
    remote_log_metadata_topic_min_isr: int = key(
        SHORT, 2, "Accepted for compatibility: a single broker has one replica.", check=at_least(1)
    )
    remote_log_metadata_topic_retention_ms: int = key(
        LONG,
        -1,
        "Retention of the metadata topic; -1 keeps every event.",
        check=Check(lambda value: value == -1 or value > 0, "-1 or above 0"),
    )
    remote_log_metadata_consume_wait_ms: int = key(
        LONG,
        120_000,
        "Longest time until an event that was stored is read back.",
        check=at_least(0),
    )
    remote_log_metadata_initialization_retry_max_timeout_ms: int = key(
        LONG, 120_000, "Accepted for compatibility: the topic is in process.", check=at_least(0)
    )
    remote_log_metadata_initialization_retry_interval_ms: int = key(
        LONG, 100, "Accepted for compatibility: the topic is in process.", check=at_least(0)
    )
    remote_log_metadata_poll_interval_ms: int = key(
        LONG, 100, "Pause between two looks for new events.", check=at_least(1)
    )
    remote_log_metadata_read_max_bytes: int = key(
        INT, 1_048_576, "Events are read from the metadata topic in runs of this size.",
        check=at_least(1),
    )  # fmt: skip
    remote_log_metadata_read_wait_ms: int = key(
        LONG,
        100,
        "How long a read waits for a partition whose events are still being read.",
        check=at_least(0),
    )
    remote_log_metadata_pending_writes_max: int = key(
        INT, 10_000, "Events of one metadata partition that wait to be read back.",
        check=at_least(1),
    )  # fmt: skip
    remote_log_metadata_corrupt_record_policy: str = key(
        STRING,
        "refuse",
        "What a record that cannot be decoded or applied does. refuse: the partitions whose events"
        " share its metadata partition answer every call with an error that names the record."
        " skip: it is logged, counted and passed over.",
        check=one_of("refuse", "skip"),
    )
    client_properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_config(cls, texts: Mapping[str, str]) -> Self:
        """Settings from keys whose `rlmm.config.` prefix is cut; UnknownConfigError for a key
        that neither is declared here nor configures a client."""
        clients = {name: text for name, text in texts.items() if name.startswith(CLIENT_PREFIXES)}
        declared = {name: text for name, text in texts.items() if name not in clients}
        return cls(**parse_fields(cls, declared), client_properties=clients)
