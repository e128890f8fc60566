"""Keys of groups that have no effect here: they are checked, stored and described as Kafka does.

Share and streams groups are not supported, and a group of the consumer protocol that has changed is
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
from isotherm.config.inert import NO_SHARE_GROUPS, NO_STREAMS_GROUPS
from isotherm.errors import ConfigError

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


_ASSIGN = "Time between two assignments of a group."
_DELAY = "How long a new group waits for more members."
_DELIVERIES = "How often a record is delivered."
_HEARTBEAT = "How often members are to send heartbeats."
_LOCK = "How long a member holds a record."
_LOCKS = "Records of a partition that members may hold."
_SESSION = "Time after which a member that sends no heartbeat is removed."
_STANDBYS = "Standby replicas of each task."


def _max(documentation: str) -> str:
    return f"Upper bound of a group's value: {documentation[0].lower()}{documentation[1:]}"


def _min(documentation: str) -> str:
    return f"Lower bound of a group's value: {documentation[0].lower()}{documentation[1:]}"


def _consumer(default: int, check: Check, documentation: str, *, dynamic: bool = False) -> int:
    return key(INT, default, documentation, check=check, dynamic=dynamic, no_effect=_AT_ONCE)


def _share(default: int, check: Check, documentation: str, *, dynamic: bool = False) -> int:
    return key(INT, default, documentation, check=check, dynamic=dynamic, no_effect=NO_SHARE_GROUPS)


def _streams(default: int, check: Check, documentation: str, *, dynamic: bool = False) -> int:
    effect = NO_STREAMS_GROUPS
    return key(INT, default, documentation, check=check, dynamic=dynamic, no_effect=effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedGroupConfig:
    """Keys of the broker: the defaults and bounds of the keys of a group."""

    group_consumer_assignment_interval_ms: int = _consumer(1000, at_least(0), _ASSIGN, dynamic=True)
    group_consumer_max_assignment_interval_ms: int = _consumer(15000, at_least(0), _max(_ASSIGN))
    group_consumer_min_assignment_interval_ms: int = _consumer(0, at_least(0), _min(_ASSIGN))
    group_share_assignment_interval_ms: int = _share(1000, at_least(0), _ASSIGN, dynamic=True)
    group_share_delivery_count_limit: int = _share(5, between(2, 10), _DELIVERIES)
    group_share_heartbeat_interval_ms: int = _share(5000, at_least(1), _HEARTBEAT)
    group_share_max_assignment_interval_ms: int = _share(15000, at_least(0), _max(_ASSIGN))
    group_share_max_delivery_count_limit: int = _share(10, between(5, 25), _max(_DELIVERIES))
    group_share_max_heartbeat_interval_ms: int = _share(15000, at_least(1), _max(_HEARTBEAT))
    group_share_max_partition_max_record_locks: int = _share(
        4000, between(2000, 10000), _max(_LOCKS)
    )
    group_share_max_record_lock_duration_ms: int = _share(
        60000, between(30000, 3600000), _max(_LOCK)
    )
    group_share_max_session_timeout_ms: int = _share(60000, at_least(1), _max(_SESSION))
    group_share_min_assignment_interval_ms: int = _share(0, at_least(0), _min(_ASSIGN))
    group_share_min_delivery_count_limit: int = _share(2, between(2, 5), _min(_DELIVERIES))
    group_share_min_heartbeat_interval_ms: int = _share(5000, at_least(1), _min(_HEARTBEAT))
    group_share_min_partition_max_record_locks: int = _share(100, between(100, 2000), _min(_LOCKS))
    group_share_min_record_lock_duration_ms: int = _share(15000, between(1000, 30000), _min(_LOCK))
    group_share_min_session_timeout_ms: int = _share(45000, at_least(1), _min(_SESSION))
    group_share_partition_max_record_locks: int = _share(2000, between(100, 10000), _LOCKS)
    group_share_record_lock_duration_ms: int = _share(30000, between(1000, 3600000), _LOCK)
    group_share_session_timeout_ms: int = _share(45000, at_least(1), _SESSION)
    group_streams_assignment_interval_ms: int = _streams(1000, at_least(0), _ASSIGN, dynamic=True)
    group_streams_heartbeat_interval_ms: int = _streams(5000, at_least(1), _HEARTBEAT)
    group_streams_initial_rebalance_delay_ms: int = _streams(3000, at_least(0), _DELAY)
    group_streams_max_assignment_interval_ms: int = _streams(15000, at_least(0), _max(_ASSIGN))
    group_streams_max_heartbeat_interval_ms: int = _streams(15000, at_least(1), _max(_HEARTBEAT))
    group_streams_max_session_timeout_ms: int = _streams(60000, at_least(1), _max(_SESSION))
    group_streams_max_standby_replicas: int = _streams(2, at_least(0), _max(_STANDBYS))
    group_streams_min_assignment_interval_ms: int = _streams(0, at_least(0), _min(_ASSIGN))
    group_streams_min_heartbeat_interval_ms: int = _streams(5000, at_least(1), _min(_HEARTBEAT))
    group_streams_min_session_timeout_ms: int = _streams(45000, at_least(1), _min(_SESSION))
    group_streams_num_standby_replicas: int = _streams(0, at_least(0), _STANDBYS)
    group_streams_session_timeout_ms: int = _streams(45000, at_least(1), _SESSION)

    def unsupported_defaults(self) -> dict[str, Any]:
        """The values of a group that sets none, by field. As in Kafka, its assignment interval is
        shown as Kafka's default."""
        return {
            field_name: getattr(self, _field_name(synonym.name))
            for name, (field_name, declared) in config_keys(UnsupportedGroupLevelConfig).items()
            for synonym in declared.synonyms
            if not name.endswith(_ASSIGNMENT_INTERVAL)
        }


def _of_one_group(name: str, check: Check) -> int:
    """The key of one group whose value is that of the broker's key `name` unless it is set."""
    broker = config_keys(UnsupportedGroupConfig)[name][1]
    return key(
        INT,
        int(broker.default),
        broker.documentation,
        check=check,
        synonyms=[name],
        no_effect=broker.no_effect,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedGroupLevelConfig:
    """Keys of one group."""

    consumer_assignment_interval_ms: int = _of_one_group(
        "group.consumer.assignment.interval.ms", at_least(0)
    )
    share_assignment_interval_ms: int = _of_one_group(
        "group.share.assignment.interval.ms", at_least(0)
    )
    share_auto_offset_reset: str = key(
        STRING,
        "latest",
        "Where a share group begins.",
        check=_OFFSET_RESET,
        no_effect=NO_SHARE_GROUPS,
    )
    share_delivery_count_limit: int = _of_one_group("group.share.delivery.count.limit", at_least(2))
    share_heartbeat_interval_ms: int = _of_one_group(
        "group.share.heartbeat.interval.ms", at_least(1)
    )
    share_isolation_level: str = key(
        STRING,
        "read_uncommitted",
        "Whether records of aborted transactions are delivered.",
        check=one_of("read_committed", "read_uncommitted"),
        no_effect=NO_SHARE_GROUPS,
    )
    share_partition_max_record_locks: int = _of_one_group(
        "group.share.partition.max.record.locks", at_least(100)
    )
    share_record_lock_duration_ms: int = _of_one_group(
        "group.share.record.lock.duration.ms", at_least(1000)
    )
    share_renew_acknowledge_enable: bool = key(
        BOOLEAN,
        True,
        "Whether members may renew their hold of a record.",
        no_effect=NO_SHARE_GROUPS,
    )
    share_session_timeout_ms: int = _of_one_group("group.share.session.timeout.ms", at_least(1))
    streams_assignment_interval_ms: int = _of_one_group(
        "group.streams.assignment.interval.ms", at_least(0)
    )
    streams_heartbeat_interval_ms: int = _of_one_group(
        "group.streams.heartbeat.interval.ms", at_least(1)
    )
    streams_initial_rebalance_delay_ms: int = _of_one_group(
        "group.streams.initial.rebalance.delay.ms", at_least(0)
    )
    streams_num_standby_replicas: int = _of_one_group(
        "group.streams.num.standby.replicas", at_least(0)
    )
    streams_session_timeout_ms: int = _of_one_group("group.streams.session.timeout.ms", at_least(1))

    def check_unsupported(self, broker: UnsupportedGroupConfig, texts: Mapping[str, str]) -> None:
        """Raise ConfigError, with Kafka's message, for a value outside the broker's limits."""
        for name, (field_name, declared) in config_keys(UnsupportedGroupLevelConfig).items():
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


def _check_bounds(name: str, value: int, broker_name: str, broker: UnsupportedGroupConfig) -> None:
    group, kind, rest = broker_name.split(".", 2)
    for bound, words in (("min", "greater"), ("max", "less")):
        bound_name = f"{group}.{kind}.{bound}.{rest}"
        bound_name = _BOUNDS.get(bound_name, bound_name)
        limit = getattr(broker, _field_name(bound_name), None)
        if limit is not None and (value < limit if bound == "min" else value > limit):
            raise ConfigError(f"{name} must be {words} than or equal to {bound_name}")


def _field_name(name: str) -> str:
    return name.replace(".", "_")
