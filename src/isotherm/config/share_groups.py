"""Configuration of share groups.

Source: Kafka GroupCoordinatorConfig, ShareGroupConfig, GroupConfig.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from isotherm.config.definition import (
    BOOLEAN,
    INT,
    STRING,
    Check,
    at_least,
    between,
    key,
    one_of,
)
from isotherm.config.group_keys import lower_bound, of_one_group, upper_bound
from isotherm.config.unsupported_groups import UnsupportedGroupConfig, UnsupportedGroupLevelConfig
from isotherm.errors import ConfigError

# The form that Java's Duration.parse takes, without negative parts.
_DURATION = re.compile(
    r"by_duration:(?i:\+?P(?=[0-9T+])(?:\+?([0-9]{1,19})D)?(?:T(?=[0-9+])(?:\+?([0-9]{1,19})H)?"
    r"(?:\+?([0-9]{1,19})M)?(?:\+?([0-9]{1,19})(?:[.,]([0-9]{0,9}))?S)?)?)"
)
_UNITS_S = (86_400, 3_600, 60, 1)
_SECONDS_MAX = 2**63 - 1
"""Java's Duration counts them in a long."""


def by_duration_ms(value: str) -> int | None:
    """The milliseconds of `by_duration:PnDTnHnMn.nS`. None for any other text, and for more than
    Java's Duration can be."""
    match = _DURATION.fullmatch(value)
    if match is None:
        return None
    *numbers, fraction = match.groups()
    seconds = sum(int(number or 0) * unit for number, unit in zip(numbers, _UNITS_S, strict=True))
    if seconds > _SECONDS_MAX:
        return None
    return seconds * 1000 + int((fraction or "").ljust(3, "0")[:3])


_OFFSET_RESET = Check(
    lambda value: value in ("earliest", "latest") or by_duration_ms(value) is not None,
    "earliest, latest or by_duration:PnDTnHnMn.nS",
    lambda value: (
        f"Invalid value `{value}` for configuration share.auto.offset.reset. The value must be"
        " either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    ),
)


_ASSIGN = "Time between two assignments of a group."
_DELIVERIES = "How often a record is delivered."
_HEARTBEAT = "How often members are to send heartbeats."
_LOCK = "How long a member holds a record."
_LOCKS = "Records of a partition that members may hold."
_SESSION = "Time after which a member that sends no heartbeat is removed."


def _share(default: int, check: Check, documentation: str, *, dynamic: bool = False) -> int:
    return key(INT, default, documentation, check=check, dynamic=dynamic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig(UnsupportedGroupConfig):
    """Keys of the broker: bounds of all share groups, and the defaults and bounds of the keys of a
    group."""

    group_share_assignment_interval_ms: int = _share(1000, at_least(0), _ASSIGN, dynamic=True)
    group_share_delivery_count_limit: int = _share(5, between(2, 10), _DELIVERIES)
    group_share_heartbeat_interval_ms: int = _share(5000, at_least(1), _HEARTBEAT)
    group_share_max_assignment_interval_ms: int = _share(15000, at_least(0), upper_bound(_ASSIGN))
    group_share_max_delivery_count_limit: int = _share(10, between(5, 25), upper_bound(_DELIVERIES))
    group_share_max_heartbeat_interval_ms: int = _share(15000, at_least(1), upper_bound(_HEARTBEAT))
    group_share_max_partition_max_record_locks: int = _share(
        4000, between(2000, 10000), upper_bound(_LOCKS)
    )
    group_share_max_record_lock_duration_ms: int = _share(
        60000, between(30000, 3600000), upper_bound(_LOCK)
    )
    group_share_max_session_timeout_ms: int = _share(60000, at_least(1), upper_bound(_SESSION))
    group_share_min_assignment_interval_ms: int = _share(0, at_least(0), lower_bound(_ASSIGN))
    group_share_min_delivery_count_limit: int = _share(2, between(2, 5), lower_bound(_DELIVERIES))
    group_share_min_heartbeat_interval_ms: int = _share(5000, at_least(1), lower_bound(_HEARTBEAT))
    group_share_min_partition_max_record_locks: int = _share(
        100, between(100, 2000), lower_bound(_LOCKS)
    )
    group_share_min_record_lock_duration_ms: int = _share(
        15000, between(1000, 30000), lower_bound(_LOCK)
    )
    group_share_min_session_timeout_ms: int = _share(45000, at_least(1), lower_bound(_SESSION))
    group_share_partition_max_record_locks: int = _share(2000, between(100, 10000), _LOCKS)
    group_share_record_lock_duration_ms: int = _share(30000, between(1000, 3600000), _LOCK)
    group_share_session_timeout_ms: int = _share(45000, at_least(1), _SESSION)
    group_share_max_size: int = _share(
        200, between(1, 1000), "Members that a share group may have."
    )
    group_share_max_share_sessions: int = _share(
        2000, at_least(1), "Share sessions that a broker keeps."
    )

    def check_counts(self) -> None:
        """Raise ConfigError for counts of the broker that do not fit together."""
        sessions, size = self.group_share_max_share_sessions, self.group_share_max_size
        if sessions < size:
            raise ConfigError(
                "group.share.max.share.sessions must be greater than or equal to"
                f" group.share.max.size sessions={sessions} size={size}"
            )
        standbys, highest = (
            self.group_streams_num_standby_replicas,
            self.group_streams_max_standby_replicas,
        )
        if standbys > highest:
            raise ConfigError(
                "group.streams.num.standby.replicas must be less than or equal to"
                f" group.streams.max.standby.replicas value={standbys} max={highest}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupLevelConfig(UnsupportedGroupLevelConfig):
    """Keys of one group."""

    share_assignment_interval_ms: int = of_one_group(
        ShareGroupConfig, "group.share.assignment.interval.ms", at_least(0)
    )
    share_auto_offset_reset: str = key(
        STRING,
        "latest",
        "Where a share group begins.",
        check=_OFFSET_RESET,
    )
    share_delivery_count_limit: int = of_one_group(
        ShareGroupConfig, "group.share.delivery.count.limit", at_least(2)
    )
    share_heartbeat_interval_ms: int = of_one_group(
        ShareGroupConfig, "group.share.heartbeat.interval.ms", at_least(1)
    )
    share_isolation_level: str = key(
        STRING,
        "read_uncommitted",
        "Whether records of aborted transactions are delivered.",
        check=one_of("read_committed", "read_uncommitted"),
    )
    share_partition_max_record_locks: int = of_one_group(
        ShareGroupConfig, "group.share.partition.max.record.locks", at_least(100)
    )
    share_record_lock_duration_ms: int = of_one_group(
        ShareGroupConfig, "group.share.record.lock.duration.ms", at_least(1000)
    )
    share_renew_acknowledge_enable: bool = key(
        BOOLEAN,
        True,
        "Whether members may renew their hold of a record.",
    )
    share_session_timeout_ms: int = of_one_group(
        ShareGroupConfig, "group.share.session.timeout.ms", at_least(1)
    )
