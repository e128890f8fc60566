"""Keys of groups that have no effect here: they are checked, stored and described as Kafka does.

Streams groups are not supported, and a group of the consumer protocol that has changed is assigned
at once. Tools that describe a group or set all of its keys meet what they meet on Kafka
(docs/decisions/0196).
Source: Kafka GroupConfig, GroupCoordinatorConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.config.definition import INT, Check, at_least, key
from isotherm.config.group_keys import lower_bound, of_one_group, upper_bound
from isotherm.config.inert import NO_STREAMS_GROUPS

_AT_ONCE = "a group that changed is assigned at once"

_ASSIGN = "Time between two assignments of a group."
_DELAY = "How long a new group waits for more members."
_HEARTBEAT = "How often members are to send heartbeats."
_SESSION = "Time after which a member that sends no heartbeat is removed."
_STANDBYS = "Standby replicas of each task."


def _consumer(default: int, check: Check, documentation: str, *, dynamic: bool = False) -> int:
    return key(INT, default, documentation, check=check, dynamic=dynamic, no_effect=_AT_ONCE)


def _streams(default: int, check: Check, documentation: str, *, dynamic: bool = False) -> int:
    effect = NO_STREAMS_GROUPS
    return key(INT, default, documentation, check=check, dynamic=dynamic, no_effect=effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedGroupConfig:
    """Keys of the broker: the defaults and bounds of the keys of a group."""

    group_consumer_assignment_interval_ms: int = _consumer(1000, at_least(0), _ASSIGN, dynamic=True)
    group_consumer_max_assignment_interval_ms: int = _consumer(
        15000, at_least(0), upper_bound(_ASSIGN)
    )
    group_consumer_min_assignment_interval_ms: int = _consumer(0, at_least(0), lower_bound(_ASSIGN))
    group_streams_assignment_interval_ms: int = _streams(1000, at_least(0), _ASSIGN, dynamic=True)
    group_streams_heartbeat_interval_ms: int = _streams(5000, at_least(1), _HEARTBEAT)
    group_streams_initial_rebalance_delay_ms: int = _streams(3000, at_least(0), _DELAY)
    group_streams_max_assignment_interval_ms: int = _streams(
        15000, at_least(0), upper_bound(_ASSIGN)
    )
    group_streams_max_heartbeat_interval_ms: int = _streams(
        15000, at_least(1), upper_bound(_HEARTBEAT)
    )
    group_streams_max_session_timeout_ms: int = _streams(60000, at_least(1), upper_bound(_SESSION))
    group_streams_max_standby_replicas: int = _streams(2, at_least(0), upper_bound(_STANDBYS))
    group_streams_min_assignment_interval_ms: int = _streams(0, at_least(0), lower_bound(_ASSIGN))
    group_streams_min_heartbeat_interval_ms: int = _streams(
        5000, at_least(1), lower_bound(_HEARTBEAT)
    )
    group_streams_min_session_timeout_ms: int = _streams(45000, at_least(1), lower_bound(_SESSION))
    group_streams_num_standby_replicas: int = _streams(0, at_least(0), _STANDBYS)
    group_streams_session_timeout_ms: int = _streams(45000, at_least(1), _SESSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedGroupLevelConfig:
    """Keys of one group."""

    consumer_assignment_interval_ms: int = of_one_group(
        UnsupportedGroupConfig, "group.consumer.assignment.interval.ms", at_least(0)
    )
    streams_assignment_interval_ms: int = of_one_group(
        UnsupportedGroupConfig, "group.streams.assignment.interval.ms", at_least(0)
    )
    streams_heartbeat_interval_ms: int = of_one_group(
        UnsupportedGroupConfig, "group.streams.heartbeat.interval.ms", at_least(1)
    )
    streams_initial_rebalance_delay_ms: int = of_one_group(
        UnsupportedGroupConfig, "group.streams.initial.rebalance.delay.ms", at_least(0)
    )
    streams_num_standby_replicas: int = of_one_group(
        UnsupportedGroupConfig, "group.streams.num.standby.replicas", at_least(0)
    )
    streams_session_timeout_ms: int = of_one_group(
        UnsupportedGroupConfig, "group.streams.session.timeout.ms", at_least(1)
    )
