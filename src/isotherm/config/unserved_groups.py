"""Keys of groups that have no effect here: they are checked, stored and described as Kafka does.

Share and streams groups are not served, and a group of the consumer protocol that has changed is
assigned at once. Tools that describe a group or set all of its keys meet what they meet on Kafka
(docs/decisions/0196).
Source: Kafka GroupConfig, GroupCoordinatorConfig, ShareGroupConfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.config.definition import (
    BOOLEAN,
    INT,
    STRING,
    Check,
    at_least,
    between,
    config_keys,
    key,
    one_of,
)
from isotherm.config.inert import NO_SHARE_GROUPS
from isotherm.errors import ConfigError

_NO_STREAMS_GROUPS = "streams groups are not served"
_AT_ONCE = "a group that changed is assigned at once"

# The form that Java's Duration.parse takes, without negative parts.
_DURATION = re.compile(
    r"by_duration:\+?P(?=[0-9T+])(?:\+?[0-9]+D)?(?:T(?=[0-9+])(?:\+?[0-9]+H)?(?:\+?[0-9]+M)?"
    r"(?:\+?[0-9]+(?:[.,][0-9]{0,9})?S)?)?",
    re.IGNORECASE,
)


def _is_offset_reset(value: str) -> bool:
    is_duration = value.startswith("by_duration:") and _DURATION.fullmatch(value) is not None
    return value in ("earliest", "latest") or is_duration


_OFFSET_RESET = Check(
    _is_offset_reset,
    "earliest, latest or by_duration:PnDTnHnMn.nS",
    lambda value: (
        f"Invalid value `{value}` for configuration share.auto.offset.reset. The value must be"
        " either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedGroupConfig:
    """Keys of the broker: the defaults and bounds of the keys of a group."""

    group_consumer_assignment_interval_ms: int = key(
        INT,
        1000,
        "Time between two assignments of a group.",
        check=at_least(0),
        dynamic=True,
        no_effect=_AT_ONCE,
    )
    group_consumer_max_assignment_interval_ms: int = key(
        INT,
        15000,
        "Upper bound of a group's value: time between two assignments of a group.",
        check=at_least(0),
        no_effect=_AT_ONCE,
    )
    group_consumer_min_assignment_interval_ms: int = key(
        INT,
        0,
        "Lower bound of a group's value: time between two assignments of a group.",
        check=at_least(0),
        no_effect=_AT_ONCE,
    )
    group_share_assignment_interval_ms: int = key(
        INT,
        1000,
        "Time between two assignments of a group.",
        check=at_least(0),
        dynamic=True,
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_delivery_count_limit: int = key(
        INT,
        5,
        "How often a record is delivered.",
        check=between(2, 10),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "How often members are to send heartbeats.",
        check=at_least(1),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_max_assignment_interval_ms: int = key(
        INT,
        15000,
        "Upper bound of a group's value: time between two assignments of a group.",
        check=at_least(0),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_max_delivery_count_limit: int = key(
        INT,
        10,
        "Upper bound of a group's value: how often a record is delivered.",
        check=between(5, 25),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_max_heartbeat_interval_ms: int = key(
        INT,
        15000,
        "Upper bound of a group's value: how often members are to send heartbeats.",
        check=at_least(1),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_max_partition_max_record_locks: int = key(
        INT,
        4000,
        "Upper bound of a group's value: records of a partition that members may hold.",
        check=between(2000, 10000),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_max_record_lock_duration_ms: int = key(
        INT,
        60000,
        "Upper bound of a group's value: how long a member holds a record.",
        check=between(30000, 3600000),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_max_session_timeout_ms: int = key(
        INT,
        60000,
        "Upper bound of a group's value: time after which a member that sends no heartbeat is"
        " removed.",
        check=at_least(1),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_min_assignment_interval_ms: int = key(
        INT,
        0,
        "Lower bound of a group's value: time between two assignments of a group.",
        check=at_least(0),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_min_delivery_count_limit: int = key(
        INT,
        2,
        "Lower bound of a group's value: how often a record is delivered.",
        check=between(2, 5),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_min_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "Lower bound of a group's value: how often members are to send heartbeats.",
        check=at_least(1),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_min_partition_max_record_locks: int = key(
        INT,
        100,
        "Lower bound of a group's value: records of a partition that members may hold.",
        check=between(100, 2000),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_min_record_lock_duration_ms: int = key(
        INT,
        15000,
        "Lower bound of a group's value: how long a member holds a record.",
        check=between(1000, 30000),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_min_session_timeout_ms: int = key(
        INT,
        45000,
        "Lower bound of a group's value: time after which a member that sends no heartbeat is"
        " removed.",
        check=at_least(1),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_partition_max_record_locks: int = key(
        INT,
        2000,
        "Records of a partition that members may hold.",
        check=between(100, 10000),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_record_lock_duration_ms: int = key(
        INT,
        30000,
        "How long a member holds a record.",
        check=between(1000, 3600000),
        no_effect=NO_SHARE_GROUPS,
    )
    group_share_session_timeout_ms: int = key(
        INT,
        45000,
        "Time after which a member that sends no heartbeat is removed.",
        check=at_least(1),
        no_effect=NO_SHARE_GROUPS,
    )
    group_streams_assignment_interval_ms: int = key(
        INT,
        1000,
        "Time between two assignments of a group.",
        check=at_least(0),
        dynamic=True,
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "How often members are to send heartbeats.",
        check=at_least(1),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_initial_rebalance_delay_ms: int = key(
        INT,
        3000,
        "How long a new group waits for more members.",
        check=at_least(0),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_max_assignment_interval_ms: int = key(
        INT,
        15000,
        "Upper bound of a group's value: time between two assignments of a group.",
        check=at_least(0),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_max_heartbeat_interval_ms: int = key(
        INT,
        15000,
        "Upper bound of a group's value: how often members are to send heartbeats.",
        check=at_least(1),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_max_session_timeout_ms: int = key(
        INT,
        60000,
        "Upper bound of a group's value: time after which a member that sends no heartbeat is"
        " removed.",
        check=at_least(1),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_max_standby_replicas: int = key(
        INT,
        2,
        "Upper bound of a group's value: standby replicas of each task.",
        check=at_least(0),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_min_assignment_interval_ms: int = key(
        INT,
        0,
        "Lower bound of a group's value: time between two assignments of a group.",
        check=at_least(0),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_min_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "Lower bound of a group's value: how often members are to send heartbeats.",
        check=at_least(1),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_min_session_timeout_ms: int = key(
        INT,
        45000,
        "Lower bound of a group's value: time after which a member that sends no heartbeat is"
        " removed.",
        check=at_least(1),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_num_standby_replicas: int = key(
        INT,
        0,
        "Standby replicas of each task.",
        check=at_least(0),
        no_effect=_NO_STREAMS_GROUPS,
    )
    group_streams_session_timeout_ms: int = key(
        INT,
        45000,
        "Time after which a member that sends no heartbeat is removed.",
        check=at_least(1),
        no_effect=_NO_STREAMS_GROUPS,
    )

    def unserved_defaults(self) -> dict[str, Any]:
        """The values of a group that sets none, by field. As in Kafka, its assignment interval is
        shown as Kafka's default."""
        return {
            field_name: getattr(self, _field_name(synonym.name))
            for name, (field_name, declared) in config_keys(UnservedGroupLevelConfig).items()
            for synonym in declared.synonyms
            if not name.endswith(_ASSIGNMENT_INTERVAL)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedGroupLevelConfig:
    """Keys of one group."""

    consumer_assignment_interval_ms: int = key(
        INT,
        1000,
        "Time between two assignments of a group.",
        check=at_least(0),
        synonyms=["group.consumer.assignment.interval.ms"],
        no_effect=_AT_ONCE,
    )
    share_assignment_interval_ms: int = key(
        INT,
        1000,
        "Time between two assignments of a group.",
        check=at_least(0),
        synonyms=["group.share.assignment.interval.ms"],
        no_effect=NO_SHARE_GROUPS,
    )
    share_auto_offset_reset: str = key(
        STRING,
        "latest",
        "Where a share group begins.",
        check=_OFFSET_RESET,
        no_effect=NO_SHARE_GROUPS,
    )
    share_delivery_count_limit: int = key(
        INT,
        5,
        "How often a record is delivered.",
        check=at_least(2),
        synonyms=["group.share.delivery.count.limit"],
        no_effect=NO_SHARE_GROUPS,
    )
    share_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "How often members are to send heartbeats.",
        check=at_least(1),
        synonyms=["group.share.heartbeat.interval.ms"],
        no_effect=NO_SHARE_GROUPS,
    )
    share_isolation_level: str = key(
        STRING,
        "read_uncommitted",
        "Whether records of aborted transactions are delivered.",
        check=one_of("read_committed", "read_uncommitted"),
        no_effect=NO_SHARE_GROUPS,
    )
    share_partition_max_record_locks: int = key(
        INT,
        2000,
        "Records of a partition that members may hold.",
        check=at_least(100),
        synonyms=["group.share.partition.max.record.locks"],
        no_effect=NO_SHARE_GROUPS,
    )
    share_record_lock_duration_ms: int = key(
        INT,
        30000,
        "How long a member holds a record.",
        check=at_least(1000),
        synonyms=["group.share.record.lock.duration.ms"],
        no_effect=NO_SHARE_GROUPS,
    )
    share_renew_acknowledge_enable: bool = key(
        BOOLEAN,
        True,
        "Whether members may renew their hold of a record.",
        no_effect=NO_SHARE_GROUPS,
    )
    share_session_timeout_ms: int = key(
        INT,
        45000,
        "Time after which a member that sends no heartbeat is removed.",
        check=at_least(1),
        synonyms=["group.share.session.timeout.ms"],
        no_effect=NO_SHARE_GROUPS,
    )
    streams_assignment_interval_ms: int = key(
        INT,
        1000,
        "Time between two assignments of a group.",
        check=at_least(0),
        synonyms=["group.streams.assignment.interval.ms"],
        no_effect=_NO_STREAMS_GROUPS,
    )
    streams_heartbeat_interval_ms: int = key(
        INT,
        5000,
        "How often members are to send heartbeats.",
        check=at_least(1),
        synonyms=["group.streams.heartbeat.interval.ms"],
        no_effect=_NO_STREAMS_GROUPS,
    )
    streams_initial_rebalance_delay_ms: int = key(
        INT,
        3000,
        "How long a new group waits for more members.",
        check=at_least(0),
        synonyms=["group.streams.initial.rebalance.delay.ms"],
        no_effect=_NO_STREAMS_GROUPS,
    )
    streams_num_standby_replicas: int = key(
        INT,
        0,
        "Standby replicas of each task.",
        check=at_least(0),
        synonyms=["group.streams.num.standby.replicas"],
        no_effect=_NO_STREAMS_GROUPS,
    )
    streams_session_timeout_ms: int = key(
        INT,
        45000,
        "Time after which a member that sends no heartbeat is removed.",
        check=at_least(1),
        synonyms=["group.streams.session.timeout.ms"],
        no_effect=_NO_STREAMS_GROUPS,
    )

    def check_unserved(self, broker: UnservedGroupConfig, texts: Mapping[str, str]) -> None:
        """Raise ConfigError, with Kafka's message, for a value outside the broker's limits."""
        for name, (field_name, declared) in config_keys(UnservedGroupLevelConfig).items():
            if name.endswith(_ASSIGNMENT_INTERVAL) and name not in texts:
                continue
            for synonym in declared.synonyms:
                _check_bounds(name, getattr(self, field_name), synonym.name, broker)
        for kind in ("share", "streams"):
            session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if getattr(self, _field_name(session)) <= getattr(self, _field_name(interval)):
                raise ConfigError(f"{session} must be greater than {interval}")


_ASSIGNMENT_INTERVAL = ".assignment.interval.ms"
# The one bound whose name does not follow from that of the key.
_BOUNDS = {"group.streams.max.num.standby.replicas": "group.streams.max.standby.replicas"}


def _check_bounds(name: str, value: int, broker_name: str, broker: UnservedGroupConfig) -> None:
    group, kind, rest = broker_name.split(".", 2)
    for bound, words in (("min", "greater"), ("max", "less")):
        bound_name = f"{group}.{kind}.{bound}.{rest}"
        bound_name = _BOUNDS.get(bound_name, bound_name)
        limit = getattr(broker, _field_name(bound_name), None)
        if limit is not None and (value < limit if bound == "min" else value > limit):
            raise ConfigError(f"{name} must be {words} than or equal to {bound_name}")


def _field_name(name: str) -> str:
    return name.replace(".", "_")
