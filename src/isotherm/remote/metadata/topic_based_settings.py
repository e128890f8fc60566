"""Settings of the topic-based metadata manager: the keys under `rlmm.config.`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from isotherm.config.definition import (
    DOUBLE,
    INT,
    LONG,
    SHORT,
    STRING,
    Check,
    at_least,
    between,
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


_RETENTION = Check(lambda value: value == -1 or value > 0, "-1 or above 0")


_ONE_REPLICA = "with the embedded controller a partition has one replica"
_WITHOUT_EFFECT = {
    "remote.log.metadata.topic.replication.factor": ("1", _ONE_REPLICA),
    "remote.log.metadata.topic.min.isr": ("1", _ONE_REPLICA),
    "remote.log.metadata.initialization.retry.max.timeout.ms": (None, "the topic is in process"),
    "remote.log.metadata.initialization.retry.interval.ms": (None, "the topic is in process"),
}
"""For each key the value in effect (None if there is none), and the reason why it is fixed."""


def keys_without_effect(texts: Mapping[str, str]) -> dict[str, str]:
    """The keys that a broker with the topic in process ignores, each with the reason. All keys are
    without their prefix `rlmm.config.`."""
    reasons = {
        name: reason
        for name, (in_effect, reason) in _WITHOUT_EFFECT.items()
        if name in texts and texts[name].strip() != in_effect
    }
    reasons |= {
        name: "the topic is in process" for name in texts if name.startswith(CLIENT_PREFIXES)
    }
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBasedSettings:
    """Kafka's keys, then Isotherm's own. client_properties holds the keys of CLIENT_PREFIXES
    unchanged: they configure Kafka's clients, which no manager here uses."""

    remote_log_metadata_topic_num_partitions: int = key(
        INT, 50, "Partitions of the metadata topic when it is created.", check=at_least(1)
    )
    remote_log_metadata_topic_replication_factor: int = key(
        SHORT,
        3,
        "Replicas of the metadata topic when a cluster creates it. With the embedded controller it"
        " has one.",
        check=at_least(1),
    )
    remote_log_metadata_topic_min_isr: int = key(
        SHORT,
        2,
        "min.insync.replicas of the metadata topic when a cluster creates it.",
        check=at_least(1),
    )
    remote_log_metadata_topic_retention_ms: int = key(
        LONG,
        -1,
        "Retention of the metadata topic when it is created at feature level 0; -1 keeps every"
        " event.",
        check=_RETENTION,
    )
    remote_log_metadata_topic_min_cleanable_dirty_ratio: float = key(
        DOUBLE,
        0.1,
        "min.cleanable.dirty.ratio of the metadata topic from feature level 1 on (KIP-1266).",
        check=between(0, 1),
    )
    remote_log_metadata_topic_delete_retention_ms: int = key(
        LONG,
        86_400_000,
        "delete.retention.ms of the metadata topic from feature level 1 on (KIP-1266).",
        check=at_least(0),
    )
    remote_log_metadata_topic_segment_ms: int = key(
        LONG,
        3_600_000,
        "segment.ms of the metadata topic from feature level 1 on (KIP-1266).",
        check=at_least(1),
    )
    remote_log_metadata_audit_topic_retention_ms: int = key(
        LONG,
        -1,
        "Retention of the audit topic, which has every metadata event from feature level 1 on; -1"
        " keeps them all.",
        check=_RETENTION,
    )
    remote_log_metadata_cleanup_interval_ms: int = key(
        LONG,
        3_600_000,
        "Time between two searches of the metadata topic for leftovers: lost tombstones, abandoned"
        " uploads and deletions, uploads of a leader that was replaced.",
        check=at_least(1),
    )
    remote_log_metadata_cleanup_grace_ms: int = key(
        LONG,
        3_600_000,
        "How long a segment's state must have stood before it counts as abandoned.",
        check=at_least(0),
    )
    remote_log_rewrite_check_interval_ms: int = key(
        LONG,
        60_000,
        "Time between two searches of the bucket for staged runs of compact and erase, and so the"
        " longest wait of a run to be published. Each search is one LIST request: with this"
        " default 44,000 in a month.",
        check=at_least(1),
    )
    remote_log_metadata_consume_wait_ms: int = key(
        LONG,
        120_000,
        "Longest time until an event that was stored is read back.",
        check=at_least(0),
    )
    remote_log_metadata_initialization_retry_max_timeout_ms: int = key(
        LONG,
        120_000,
        "How long the start of a read replica waits until its cluster has the metadata topic, and"
        " then until all of it is read. A broker has the topic in process.",
        check=at_least(0),
    )
    remote_log_metadata_initialization_retry_interval_ms: int = key(
        LONG, 100, "Accepted for compatibility: the topic is in process.", check=at_least(0)
    )
    remote_log_metadata_poll_interval_ms: int = key(
        LONG, 100, "Pause between two reads of new events.", check=at_least(1)
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
        "The reaction to a record that cannot be decoded or applied. refuse: the partitions with"
        " events in its metadata partition answer every call with an error that names the record."
        " skip: the record is logged, counted and ignored.",
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
