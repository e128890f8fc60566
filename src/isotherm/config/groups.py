"""Configuration of consumer groups (GroupCoordinatorConfig in Kafka)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from isotherm.config.definition import (
    INT,
    INT_MAX,
    LONG,
    SHORT,
    STRING,
    at_least,
    between,
    key,
    one_of,
    parse_fields,
    split_understood,
)
from isotherm.config.group_keys import bounded_fields, check_bounds, check_broker_keys, defaults_of
from isotherm.config.share_groups import ShareGroupConfig, ShareGroupLevelConfig
from isotherm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(ShareGroupConfig):
    """Broker-level keys of the group coordinator."""

    offsets_topic_num_partitions: int = key(
        INT,
        50,
        "Partitions of __consumer_offsets; only used when the topic is created.",
        check=between(1, 10_000),
    )
    offsets_topic_segment_bytes: int = key(
        INT,
        100 * 1024 * 1024,
        "Segment size of __consumer_offsets; only used when the topic is created.",
        check=at_least(1024 * 1024),
    )
    offsets_topic_replication_factor: int = key(
        SHORT,
        3,
        "Replicas of __consumer_offsets in a cluster; only used when the topic is created.",
        check=at_least(1),
    )
    offsets_commit_timeout_ms: int = key(
        INT,
        5000,
        "How long an answer of the group coordinator waits for the replicas of its records.",
        check=at_least(1),
    )
    offset_metadata_max_bytes: int = key(
        INT, 4096, "Largest metadata that may come with a committed offset.", check=at_least(0)
    )
    offsets_retention_minutes: int = key(
        INT,
        10_080,
        "Time after which committed offsets are dropped, once their group has no members.",
        check=at_least(1),
    )
    offsets_retention_check_interval_ms: int = key(
        LONG, 600_000, "Time between two checks of offsets' retention.", check=at_least(1)
    )
    group_min_session_timeout_ms: int = key(
        INT, 6000, "Shortest session timeout that a member may request.", check=at_least(1)
    )
    group_max_session_timeout_ms: int = key(
        INT, 1_800_000, "Longest session timeout that a member may request.", check=at_least(1)
    )
    group_initial_rebalance_delay_ms: int = key(
        INT,
        3000,
        "How long a group of the classic protocol that forms waits for more members before its"
        " first rebalance. `isotherm serve`, EmbeddedBroker and the pytest fixtures set 0 where the"
        " controller is in the process, as Kafka's own server.properties does.",
        check=at_least(0),
    )
    group_max_size: int = key(
        INT, INT_MAX, "Members that a group of the classic protocol may have.", check=at_least(1)
    )
    group_coordinator_groups_max: int = key(
        INT,
        100_000,
        "Groups that this broker coordinates, with those that only have offsets; a further one"
        " is refused with"
        " POLICY_VIOLATION. Isotherm's own key. (Kafka has no bound.)",
        check=at_least(1),
    )
    group_consumer_session_timeout_ms: int = key(
        INT,
        45_000,
        "Time after which a member of the consumer protocol that sends no heartbeat is removed.",
        check=at_least(1),
    )
    group_consumer_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "How often members of the consumer protocol are to send heartbeats.",
        check=at_least(1),
    )
    group_consumer_min_session_timeout_ms: int = key(
        INT, 45_000, "Shortest session timeout that a group may be given.", check=at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = key(
        INT, 60_000, "Longest session timeout that a group may be given.", check=at_least(1)
    )
    group_consumer_min_heartbeat_interval_ms: int = key(
        INT, 5_000, "Shortest heartbeat interval that a group may be given.", check=at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = key(
        INT, 15_000, "Longest heartbeat interval that a group may be given.", check=at_least(1)
    )
    group_consumer_max_size: int = key(
        INT, INT_MAX, "Members that a group of the consumer protocol may have.", check=at_least(1)
    )

    group_consumer_migration_policy: str = key(
        STRING,
        "bidirectional",
        "Whether a group with members may change its protocol: upgrade lets a member of the"
        " consumer protocol join a classic group, downgrade makes it a classic group again when"
        " the last such member has gone.",
        check=one_of("disabled", "upgrade", "downgrade", "bidirectional"),
    )

    def __post_init__(self) -> None:
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                "group.min.session.timeout.ms is above group.max.session.timeout.ms"
                f" min={self.group_min_session_timeout_ms} max={self.group_max_session_timeout_ms}"
            )
        check_broker_keys(self)
        self.check_counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLevelConfig(ShareGroupLevelConfig):
    """The keys that can be set for one group (GroupConfig in Kafka)."""

    consumer_session_timeout_ms: int = key(
        INT,
        45_000,
        "Time after which a member that sends no heartbeat is removed.",
        check=at_least(1),
        synonyms=["group.consumer.session.timeout.ms"],
    )
    consumer_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "How often members are to send heartbeats.",
        check=at_least(1),
        synonyms=["group.consumer.heartbeat.interval.ms"],
    )

    @classmethod
    def parse(cls, texts: Mapping[str, str], broker: GroupConfig) -> Self:
        """The configuration of a group with these settings.

        Raises ConfigError, which names the key.
        """
        fields = {
            "consumer_session_timeout_ms": broker.group_consumer_session_timeout_ms,
            "consumer_heartbeat_interval_ms": broker.group_consumer_heartbeat_interval_ms,
            **defaults_of(ShareGroupLevelConfig, broker),
        }
        return cls(**{**fields, **parse_fields(cls, texts)})

    @classmethod
    def stored(cls, texts: Mapping[str, str], broker: GroupConfig) -> tuple[Self, list[str]]:
        """The configuration in effect for a group with these stored settings, and what differs
        from them.

        A setting that this broker does not understand is left out: later controllers may have
        accepted it. A value outside the broker's limits is moved to the limit: the controllers that
        checked it have their own, and a file may change. Source: Kafka GroupConfig.evaluate.
        """
        understood, errors = split_understood(cls, texts)
        config = cls.parse(understood, broker)
        moved = bounded_fields(config, broker, understood)
        differences = [str(error) for error in errors] + [
            f"{field_name.replace('_', '.')} is outside the broker's limits"
            f" value={getattr(config, field_name)} used={value}"
            for field_name, value in moved.items()
        ]
        return replace(config, **moved), differences

    def check(self, broker: GroupConfig, texts: Mapping[str, str]) -> None:
        """Raise ConfigError, with Kafka's message, for a value outside the broker's limits. `texts`
        are those that the group sets."""
        session, interval = self.consumer_session_timeout_ms, self.consumer_heartbeat_interval_ms
        for name, value, low, high in (
            (
                "session.timeout.ms",
                session,
                broker.group_consumer_min_session_timeout_ms,
                broker.group_consumer_max_session_timeout_ms,
            ),
            (
                "heartbeat.interval.ms",
                interval,
                broker.group_consumer_min_heartbeat_interval_ms,
                broker.group_consumer_max_heartbeat_interval_ms,
            ),
        ):
            if value < low:
                raise ConfigError(
                    f"consumer.{name} must be greater than or equal to group.consumer.min.{name}"
                )
            if value > high:
                raise ConfigError(
                    f"consumer.{name} must be less than or equal to group.consumer.max.{name}"
                )
        if session <= interval:
            raise ConfigError(
                "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
            )
        check_bounds(self, broker, texts)
        for kind in ("share", "streams"):
            session = getattr(self, f"{kind}_session_timeout_ms")
            if session <= getattr(self, f"{kind}_heartbeat_interval_ms"):
                raise ConfigError(
                    f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
                )
