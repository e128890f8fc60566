"""Topic-level configuration, with Kafka's names, defaults and rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from isotherm.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Check,
    ConfigType,
    Synonym,
    any_of,
    at_least,
    between,
    format_fields,
    key,
    one_of,
    optional,
    parse_fields,
)
from isotherm.errors import ConfigError

# The default of local.retention.*: the same as the total retention.
SAME_AS_TOTAL_RETENTION = -2
UNLIMITED = -1

# KIP-1030.
_SEGMENT_BYTES_MIN = 1024 * 1024
_HOURS = 3_600_000
_MINUTES = 60_000
_DAYS = 24 * _HOURS

_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")
_THROTTLED_REPLICAS = Check(
    lambda items: items == ("*",) or all(_THROTTLED_REPLICA.fullmatch(item) for item in items),
    "* or a list of partition:broker",
)


def _limit(number: ConfigType[int]) -> ConfigType[int]:
    """A limit that any negative number turns off."""
    return ConfigType(number.name, lambda text: max(number.parse(text), UNLIMITED), str)


_LONG_LIMIT, _INT_LIMIT = _limit(LONG), _limit(INT)
# Kafka: GzipCompression.LevelValidator.
_GZIP_LEVEL = Check(
    lambda value: value == -1 or 1 <= value <= 9,
    "from 1 to 9, or -1",
    lambda value: "Value must be between 1 and 9 or equal to -1",
)
_COMPRESSION_TYPES = ("uncompressed", "none", "gzip", "snappy", "lz4", "zstd", "producer")


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """The configuration in effect for one topic. `TopicConfig()` has Kafka's defaults.

    It has no slots, so that properties which every append reads can be cached.
    """

    cleanup_policy: tuple[str, ...] = key(
        LIST,
        ("delete",),
        "The cleanup of old segments: delete, compact, both, or neither (an empty list).",
        check=any_of("delete", "compact"),
        dynamic=True,
        synonyms=["log.cleanup.policy"],
    )
    compression_type: str = key(
        STRING,
        "producer",
        "Codec of stored batches; 'producer' keeps the producer's codec.",
        check=one_of(*_COMPRESSION_TYPES),
        dynamic=True,
        synonyms=["compression.type"],
    )
    compression_gzip_level: int = key(
        INT,
        -1,
        "Level when compression.type is gzip; -1 is the codec's own default.",
        check=_GZIP_LEVEL,
        dynamic=True,
        synonyms=["compression.gzip.level"],
    )
    compression_lz4_level: int = key(
        INT,
        9,
        "Level when compression.type is lz4.",
        check=between(1, 17),
        dynamic=True,
        synonyms=["compression.lz4.level"],
    )
    compression_zstd_level: int = key(
        INT,
        3,
        "Level when compression.type is zstd.",
        # ZSTD_minCLevel and ZSTD_maxCLevel.
        check=between(-131072, 22),
        dynamic=True,
        synonyms=["compression.zstd.level"],
    )
    delete_retention_ms: int = key(
        LONG,
        _DAYS,
        "How long a reader has to see a tombstone before compaction drops it.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.cleaner.delete.retention.ms"],
    )
    file_delete_delay_ms: int = key(
        LONG,
        _MINUTES,
        "Time between renaming a file to .deleted and removing it.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.segment.delete.delay.ms"],
    )
    flush_messages: int = key(
        LONG,
        LONG_MAX,
        "Records between two fsyncs of the log.",
        check=at_least(1),
        dynamic=True,
        synonyms=["log.flush.interval.messages"],
    )
    flush_ms: int = key(
        LONG,
        LONG_MAX,
        "Time between two fsyncs of the log.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
    )
    index_interval_bytes: int = key(
        INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.index.interval.bytes"],
    )
    max_compaction_lag_ms: int = key(
        LONG,
        LONG_MAX,
        "Longest time a record stays uncompacted.",
        check=at_least(1),
        dynamic=True,
        synonyms=["log.cleaner.max.compaction.lag.ms"],
    )
    max_message_bytes: int = key(
        INT,
        # 1 MiB, and the offset and size fields of a batch (Kafka: Records.LOG_OVERHEAD).
        1048588,
        "Largest record batch that is accepted, in bytes, after compression.",
        check=at_least(0),
        dynamic=True,
        synonyms=["message.max.bytes"],
    )
    message_timestamp_type: str = key(
        STRING,
        "CreateTime",
        "Whether a record keeps its producer's timestamp.",
        check=one_of("CreateTime", "LogAppendTime"),
        dynamic=True,
        synonyms=["log.message.timestamp.type"],
    )
    message_timestamp_before_max_ms: int = key(
        LONG,
        LONG_MAX,
        "How far a record's timestamp may lie in the past.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.message.timestamp.before.max.ms"],
    )
    message_timestamp_after_max_ms: int = key(
        LONG,
        _HOURS,
        "How far a record's timestamp may lie in the future.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.message.timestamp.after.max.ms"],
    )
    min_cleanable_dirty_ratio: float = key(
        DOUBLE,
        0.5,
        "Share of a compacted log that must be dirty before it is cleaned.",
        check=between(0, 1),
        dynamic=True,
        synonyms=["log.cleaner.min.cleanable.ratio"],
    )
    min_compaction_lag_ms: int = key(
        LONG,
        0,
        "Shortest time a record stays uncompacted.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.cleaner.min.compaction.lag.ms"],
    )
    min_insync_replicas: int = key(
        INT,
        1,
        "Replicas that must have a record before acks=all answers.",
        check=at_least(1),
        dynamic=True,
        synonyms=["min.insync.replicas"],
    )
    preallocate: bool = key(
        BOOLEAN,
        False,
        "Allocate a segment's file at its full size when it is made.",
        dynamic=True,
        synonyms=["log.preallocate"],
    )
    retention_bytes: int = key(
        _LONG_LIMIT,
        UNLIMITED,
        "Bytes a partition keeps over both tiers; -1 keeps everything.",
        check=at_least(-1),
        dynamic=True,
        synonyms=["log.retention.bytes"],
    )
    retention_ms: int = key(
        LONG,
        7 * _DAYS,
        "Time a partition keeps records over both tiers; -1 keeps everything.",
        check=at_least(-1),
        dynamic=True,
        synonyms=[
            Synonym("log.retention.ms", type=_LONG_LIMIT),
            Synonym("log.retention.minutes", _MINUTES, _INT_LIMIT),
            Synonym("log.retention.hours", _HOURS, _INT_LIMIT),
        ],
    )
    segment_bytes: int = key(
        INT,
        1024 * 1024 * 1024,
        "Size at which a segment is closed and a new one is begun.",
        check=at_least(_SEGMENT_BYTES_MIN),
        dynamic=True,
        synonyms=["log.segment.bytes"],
    )
    segment_index_bytes: int = key(
        INT,
        10 * 1024 * 1024,
        "Size of a segment's offset index when it is full.",
        check=at_least(4),
        dynamic=True,
        synonyms=["log.index.size.max.bytes"],
    )
    segment_jitter_ms: int = key(
        LONG,
        0,
        "Largest random time taken off segment.ms, so that not all segments roll at once.",
        check=at_least(0),
        dynamic=True,
        synonyms=["log.roll.jitter.ms", Synonym("log.roll.jitter.hours", _HOURS, INT)],
    )
    segment_ms: int = key(
        LONG,
        7 * _DAYS,
        "Age at which a segment is closed even if it is not full.",
        check=at_least(1),
        dynamic=True,
        synonyms=["log.roll.ms", Synonym("log.roll.hours", _HOURS, INT)],
    )
    unclean_leader_election_enable: bool = key(
        BOOLEAN,
        False,
        "Whether a replica that is not in sync may become the leader. A cluster's controllers"
        " decide it; this broker stores and shows the setting.",
        dynamic=True,
        synonyms=["unclean.leader.election.enable"],
        no_effect="controllers elect leaders, and the one in the process has nothing to elect",
    )
    remote_storage_enable: bool = key(
        BOOLEAN,
        False,
        "Whether closed segments are copied to the remote tier (KIP-405).",
        dynamic=True,
    )
    local_retention_ms: int = key(
        LONG,
        SAME_AS_TOTAL_RETENTION,
        "Time a copied segment stays on local disk; -2 is the same as retention.ms.",
        check=at_least(-2),
        dynamic=True,
        synonyms=["log.local.retention.ms"],
    )
    local_retention_bytes: int = key(
        LONG,
        SAME_AS_TOTAL_RETENTION,
        "Bytes a partition keeps on local disk; -2 is the same as retention.bytes.",
        check=at_least(-2),
        dynamic=True,
        synonyms=["log.local.retention.bytes"],
    )
    remote_log_copy_disable: bool = key(
        BOOLEAN,
        False,
        "Stop copying to the remote tier, and keep the segments there (KIP-950).",
        dynamic=True,
    )
    remote_log_delete_on_disable: bool = key(
        BOOLEAN,
        False,
        "Delete the remote tier's data when remote.storage.enable is turned off.",
        dynamic=True,
    )
    remote_copy_lag_ms: int = key(
        LONG,
        0,
        "Age a closed segment must have before it is copied (KIP-1241); 0 is at once.",
        check=at_least(-1),
        dynamic=True,
        synonyms=["log.remote.copy.lag.ms"],
    )
    remote_copy_lag_bytes: int = key(
        LONG,
        -1,
        "Bytes behind the log's end a segment must be before it is copied (KIP-1241).",
        check=at_least(-1),
        dynamic=True,
        synonyms=["log.remote.copy.lag.bytes"],
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        LIST,
        (),
        "Replicas, as partition:broker, that leader.replication.throttled.rate limits; * for all.",
        check=_THROTTLED_REPLICAS,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        LIST,
        (),
        "Replicas, as partition:broker, that follower.replication.throttled.rate limits; * for"
        " all.",
        check=_THROTTLED_REPLICAS,
    )
    internal_segment_bytes: int | None = key(
        optional(INT),
        None,
        "segment.bytes without its lower bound, for tests.",
        # Kafka: LegacyRecord.RECORD_OVERHEAD_V0.
        check=Check(lambda value: value is None or value >= 14, "at least 14"),
        internal=True,
    )

    @classmethod
    def parse(cls, texts: Mapping[str, str], base: TopicConfig | None = None) -> Self:
        """`base` (or the defaults) with the keys in `texts` set.

        Raises UnknownConfigError or ConfigError, which name the key. Rules that join several keys
        depend on the broker, so `check_remote_rules` checks them.
        """
        start = base if base is not None else cls()
        return replace(start, **parse_fields(cls, texts))  # type: ignore[return-value, unused-ignore]

    def texts(self) -> dict[str, str]:
        return format_fields(self)

    @cached_property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @cached_property
    def effective_segment_ms(self) -> int:
        """The age at which a segment is closed. With compaction it is at most
        max.compaction.lag.ms, because only records of closed segments can be compacted."""
        return (
            min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        )

    @cached_property
    def effective_segment_bytes(self) -> int:
        return self.internal_segment_bytes or self.segment_bytes

    @cached_property
    def stamps_records(self) -> bool:
        """Whether the broker sets the timestamps."""
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def keeps_batches(self) -> bool:
        """Whether batches are stored with the codec and the timestamps of their producers."""
        return self.compression_type == "producer" and not self.stamps_records

    @property
    def effective_local_retention_ms(self) -> int:
        if self.local_retention_ms == SAME_AS_TOTAL_RETENTION:
            return self.retention_ms
        return self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        if self.local_retention_bytes == SAME_AS_TOTAL_RETENTION:
            return self.retention_bytes
        return self.local_retention_bytes

    def check_remote_rules(self, *, remote_system_enabled: bool) -> None:
        """Raise ConfigError if a rule that joins several keys is broken (Kafka's
        LogConfig.validate*).
        """
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms is above max.compaction.lag.ms"
                f" min={self.min_compaction_lag_ms} max={self.max_compaction_lag_ms}"
            )
        if not self.remote_storage_enable:
            return
        if not remote_system_enabled:
            raise ConfigError(
                "remote.storage.enable needs remote.log.storage.system.enable=true on the broker"
            )
        if self.compacts:
            raise ConfigError("a tiered topic cannot be compacted key=cleanup.policy")
        self.check_retention_rules()

    def check_retention_rules(self) -> None:
        """Raise ConfigError if a rule between total and local retention is broken. These rules
        apply to the defaults too."""
        _check_local_retention(
            "bytes", self.retention_bytes, self.local_retention_bytes, self.remote_log_copy_disable
        )
        _check_local_retention(
            "ms", self.retention_ms, self.local_retention_ms, self.remote_log_copy_disable
        )
        _check_copy_lag("ms", self.remote_copy_lag_ms, self.effective_local_retention_ms)
        _check_copy_lag("bytes", self.remote_copy_lag_bytes, self.effective_local_retention_bytes)


def _check_local_retention(unit: str, total: int, local: int, copy_disabled: bool) -> None:
    facts = f"retention.{unit}={total} local.retention.{unit}={local}"
    if copy_disabled and local not in (SAME_AS_TOTAL_RETENTION, total):
        raise ConfigError(
            f"with remote.log.copy.disable local.retention.{unit} must be -2 or the total {facts}"
        )
    if total > UNLIMITED and local != SAME_AS_TOTAL_RETENTION:
        if local == UNLIMITED:
            raise ConfigError(f"local retention is unlimited but the total is not {facts}")
        if local > total:
            raise ConfigError(f"local retention is above the total {facts}")


def _check_copy_lag(unit: str, lag: int, local_retention: int) -> None:
    if 0 <= local_retention < lag:
        raise ConfigError(
            f"remote.copy.lag.{unit} is above the local retention"
            f" lag={lag} local.retention.{unit}={local_retention}"
        )


assert TopicConfig().max_message_bytes < INT_MAX
