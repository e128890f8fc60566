"""What the configuration of a share group says of the delivery of records.

Source: Kafka ShareGroupConfigProvider, ShareGroupAutoOffsetResetStrategy.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.broker.share_partitions.acknowledgement import Deliveries
from isotherm.config.groups import GroupLevelConfig
from isotherm.config.share_groups import by_duration_ms
from isotherm.log.log_read import FetchIsolation
from isotherm.types import TimestampMs

EARLIEST = "earliest"
LATEST = "latest"

_READ_COMMITTED = "read_committed"


class DeliverySettings(NamedTuple):
    """`record_locks_max` bounds the records of a partition that are in flight."""

    record_lock_duration_ms: int
    delivery_count_max: int
    record_locks_max: int
    renews_locks: bool
    isolation: FetchIsolation
    auto_offset_reset: str

    @classmethod
    def of(cls, config: GroupLevelConfig) -> DeliverySettings:
        is_committed = config.share_isolation_level == _READ_COMMITTED
        return cls(
            config.share_record_lock_duration_ms,
            config.share_delivery_count_limit,
            config.share_partition_max_record_locks,
            config.share_renew_acknowledge_enable,
            FetchIsolation.TXN_COMMITTED if is_committed else FetchIsolation.HIGH_WATERMARK,
            config.share_auto_offset_reset,
        )

    def deliveries(self, now_ms: TimestampMs) -> Deliveries:
        """For acknowledgements at `now_ms`."""
        renewed_ms = now_ms + self.record_lock_duration_ms if self.renews_locks else None
        return Deliveries(self.delivery_count_max, renewed_ms)


def reset_timestamp_ms(auto_offset_reset: str, now_ms: TimestampMs) -> TimestampMs:
    """Where `by_duration:PnDTnHnMn.nS` begins. No earlier than 0, the first legal timestamp."""
    back_ms = by_duration_ms(auto_offset_reset)
    assert back_ms is not None, "the configuration was checked"
    return max(0, now_ms - back_ms)
