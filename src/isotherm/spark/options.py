"""Declares the options of the source, each once. A test compares docs/spark.md with this table.

Names, defaults and rules are those of Spark's Kafka source (`spark-sql-kafka-0-10`), so that a user
can convert a query by changing its format and adding `path`. Two kinds of options are not listed:

- `kafka.*` are client properties, passed on without the prefix. Those of TLS and logins have
  Kafka's names (`kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`), others librdkafka's.
- Storage settings such as `s3.endpoint.url`, `aws.access.key.id`, `key.prefix` are passed to the
  storage manager. A broker has them under the same names after its `rsm.config.` prefix.

Any other option is an error, which names the nearest option.

Names are case-insensitive: Spark passes them in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.config.definition import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    Check,
    ConfigKey,
    ConfigType,
    at_least,
    between,
    config_keys,
    key,
    one_of,
    optional,
)
from isotherm.errors import ConfigError
from isotherm.remote.history.holes import Gaps
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.plan.offsets import (
    EarliestOffsets,
    GlobalTimestamp,
    LatestOffsets,
    OffsetLimit,
    SpecificOffsets,
    SpecificTimestamps,
    parse_partition_offsets,
    parse_partition_timestamps,
    parse_partitions,
)
from isotherm.spark.topic_pattern import topic_pattern
from isotherm.types import TimestampMs, TopicPartition

KAFKA_PREFIX = "kafka."
STORAGE_MANAGER_KEY = "remote.log.storage.manager.class.name"
STORAGE_MANAGER_PREFIX = "rsm.config."
BOOTSTRAP_SERVERS = "bootstrap.servers"
# All settings of the storage manager, except those that an option of the source replaces.
STORAGE_SETTINGS = frozenset(config_keys(ObjectStoreSettings)) - {"url", "layout"}

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"

ISOLATION_PROPERTY = "isolation.level"
_POSITIVE = Check(lambda value: value is None or value > 0, "more than 0")


# Spark's Kafka source takes such a word in capitals as well.
_WORD: ConfigType[str] = ConfigType("STRING", lambda text: text.strip().lower(), str)
_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_MINUTE_US = 60_000_000
_UNIT_US = {
    "us": 1,
    "ms": 1000,
    "s": 1_000_000,
    "m": _MINUTE_US,
    "min": _MINUTE_US,
    "h": 60 * _MINUTE_US,
    "d": 1440 * _MINUTE_US,
}


def duration_ms(text: str) -> int | None:
    """The milliseconds of a duration in Spark's form, where a number without a unit means
    milliseconds. None if the text is invalid."""
    matched = _DURATION.fullmatch(text.strip().lower())
    return int(matched[1]) * _UNIT_US[matched[2] or "ms"] // 1000 if matched else None


_IS_DURATION = Check(
    lambda text: duration_ms(text) is not None, "a number with us, ms, s, m, min, h or d"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one `load()`. `option_parsing` creates it, and checks the options together.

    kafka_properties, storage_settings and storage_manager_settings are passed on, without their
    prefixes.
    """

    path: str = key(
        STRING,
        "",
        "Where the tier is: `s3://bucket/prefix`, `gs://`, `az://`, `file:///folder` or a folder."
        " `.load(path)` sets it. Required unless `remote.log.storage.manager.class.name` is set.",
    )
    layout: str | None = key(
        optional(STRING),
        None,
        "Layout of the objects: `aiven` or `local-tiered-storage`. Detected when not set.",
        check=one_of("aiven", "local-tiered-storage"),
    )
    storage_manager: str | None = key(
        optional(STRING),
        None,
        "A storage manager of your own that reads the segments, instead of `path`: a"
        " Python class as in the broker's configuration, its settings under `rsm.config.`."
        " Needs the metadata topic or `metadata=table`.",
        name=STORAGE_MANAGER_KEY,
    )
    metadata: str | None = key(
        optional(STRING),
        None,
        "Where the list of segments comes from: `topic` reads `__remote_log_metadata` from"
        " `kafka.bootstrap.servers` (the default when that is set); `bucket` reads the manifests"
        " in the bucket, and needs no broker (the default otherwise); `table` reads the projection"
        " of the metadata topic that `metadataTable` names.",
        check=one_of("topic", "bucket", "table"),
    )
    metadata_table: str | None = key(
        optional(STRING),
        None,
        "Where `metadata=table` finds the projection (`isotherm pipeline project`): a folder or a"
        " bucket's URL, opened with the settings of `path`.",
        name="metadataTable",
    )
    include_tail: bool | None = key(
        optional(BOOLEAN),
        None,
        "Whether to read the tail, the records that are not in the bucket yet, from the brokers."
        " True when `kafka.bootstrap.servers` is set; false reads the bucket alone.",
        name="includeTail",
    )
    subscribe: tuple[str, ...] = key(
        LIST, (), "Topics to read, separated by commas. One of the three is required."
    )
    subscribe_pattern: str | None = key(
        optional(STRING),
        None,
        "Regular expression that is found in the names of the topics, in the syntax that Java and"
        " Python share. `^` and `$` tie it to the whole name.",
        name="subscribePattern",
    )
    assign: str | None = key(
        optional(STRING), None, 'Partitions to read: `{"topicA":[0,1],"topicB":[2]}`.'
    )
    starting_offsets: str | None = key(
        optional(STRING),
        None,
        "`earliest`, the default of a batch query; `latest`, the default of a stream and possible"
        " only there; or an offset for every partition that is read:"
        ' `{"topicA":{"0":23,"1":-2}}`, -2 being the earliest and -1 the latest. A stream uses'
        " it when it starts for the first time, not when it continues from its checkpoint.",
        name="startingOffsets",
    )
    starting_offsets_by_timestamp: str | None = key(
        optional(STRING),
        None,
        "Start at the first record that is not older, for every partition that is read:"
        ' `{"topicA":{"0":1700000000000}}`, in milliseconds. Overrides `startingOffsets`.',
        name="startingOffsetsByTimestamp",
    )
    starting_timestamp: int | None = key(
        optional(LONG),
        None,
        "The same with one time for all partitions, in milliseconds. Overrides the other two.",
        name="startingTimestamp",
        check=at_least(0),
    )
    starting_offsets_by_timestamp_strategy: str = key(
        _WORD,
        "error",
        "What to do with a partition that has no record at or after its starting time: `error`,"
        " or `latest` to start at its end.",
        name="startingOffsetsByTimestampStrategy",
        check=one_of("error", "latest"),
    )
    ending_offsets: str = key(
        STRING,
        "latest",
        "`latest`, or for every partition that is read the offset after the last one to read:"
        ' `{"topicA":{"0":50,"1":-1}}`, -1 being the latest.',
        name="endingOffsets",
    )
    ending_offsets_by_timestamp: str | None = key(
        optional(STRING),
        None,
        "End before the first record that is not older, for every partition that is read; at the"
        " end of a partition that has none. Overrides `endingOffsets`.",
        name="endingOffsetsByTimestamp",
    )
    ending_timestamp: int | None = key(
        optional(LONG),
        None,
        "The same with one time for all partitions, in milliseconds. Overrides the other two.",
        name="endingTimestamp",
        check=at_least(0),
    )
    include_headers: bool = key(
        BOOLEAN, False, "Whether the rows have a `headers` column.", name="includeHeaders"
    )
    columns: tuple[str, ...] = key(
        LIST,
        (),
        "Columns to read, separated by commas, in the order of the rows; all of them when not"
        " set. `.schema(...)` with some of the columns does the same. Spark asks a Python source"
        " for every column of its schema, so only naming them saves the work.",
    )
    isolation_level: str | None = key(
        optional(STRING),
        None,
        "`read_uncommitted`, the default, or `read_committed`: records of aborted transactions are"
        " no rows, and reading ends before the first transaction that is still open. The same as"
        " `kafka.isolation.level`.",
        name="isolationLevel",
        check=one_of(READ_UNCOMMITTED, READ_COMMITTED),
    )
    fail_on_data_loss: bool = key(
        BOOLEAN,
        True,
        "Whether a query fails on data loss: an object that is missing, short or damaged, or"
        " offsets that are no longer kept. Otherwise that part is omitted with a warning in the"
        " log.",
        name="failOnDataLoss",
    )
    fail_on_offset_gaps: bool = key(
        BOOLEAN,
        True,
        "Whether an offset inside a segment that has no record and no marker is data loss. Only"
        " compaction leaves such offsets: false for topics that were compacted, where a lost batch"
        " looks like one that the cleaner removed.",
        name="failOnOffsetGaps",
    )
    min_partitions: int | None = key(
        optional(INT),
        None,
        "Minimum number of tasks, about: ranges are cut by offsets, as the Kafka source cuts them.",
        name="minPartitions",
        check=_POSITIVE,
    )
    max_records_per_partition: int | None = key(
        optional(LONG),
        None,
        "Maximum number of offsets per task; applied before `minPartitions`.",
        name="maxRecordsPerPartition",
        check=_POSITIVE,
    )
    target_bytes_per_task: int = key(
        LONG,
        256 * 1024 * 1024,
        "Bytes of segments that a task reads, about: large segments are split and small ones"
        " combined, so that tasks are between 2/3 and 3/2 of it.",
        name="targetBytesPerTask",
        check=at_least(1024),
    )
    fetch_bytes: int = key(
        INT,
        8 * 1024 * 1024,
        "Size of one ranged GET.",
        name="fetchBytes",
        check=between(4096, INT_MAX),
    )
    fetch_ahead: int = key(
        INT,
        3,
        "Ranged GETs that a task keeps in flight ahead of the one that it decodes. A task holds"
        " `fetchBytes` times (`fetchAhead` + 2) of fetched bytes at most.",
        name="fetchAhead",
        check=between(1, 64),
    )
    batch_bytes: int = key(
        INT,
        2 * 1024 * 1024,
        "Size of the row batches passed to Spark, about.",
        name="batchBytes",
        check=between(1024, 1024**3),
    )
    poll_timeout_ms: int = key(
        LONG,
        120_000,
        "How long a task waits for the next records of the tail from the broker.",
        name="kafkaConsumer.pollTimeoutMs",
        check=at_least(1),
    )
    fetch_offset_retries: int = key(
        INT,
        3,
        "How often the driver asks the broker again for offsets and topics that it failed to get.",
        name="fetchOffset.numRetries",
        check=at_least(0),
    )
    fetch_offset_retry_interval_ms: int = key(
        LONG,
        1000,
        "How long it waits in between, in milliseconds.",
        name="fetchOffset.retryIntervalMs",
        check=at_least(0),
    )
    group_id_prefix: str = key(
        STRING,
        "isotherm-relation",
        "Group id of the consumers that read the tail. They join no group.",
        name="groupIdPrefix",
    )
    max_offsets_per_trigger: int | None = key(
        optional(LONG),
        None,
        "Streams: maximum number of offsets in one batch, about, shared among the partitions in"
        " proportion to the offsets that each has to read.",
        name="maxOffsetsPerTrigger",
        check=_POSITIVE,
    )
    max_bytes_per_trigger: int | None = key(
        optional(LONG),
        None,
        "Streams: maximum bytes of record batches in one batch, about, shared in the same way;"
        " an estimate from the sizes of the segments.",
        name="maxBytesPerTrigger",
        check=_POSITIVE,
    )
    min_offsets_per_trigger: int | None = key(
        optional(LONG),
        None,
        "Streams: minimum number of new offsets for a batch, unless `maxTriggerDelay` has"
        " passed since the last one.",
        name="minOffsetsPerTrigger",
        check=_POSITIVE,
    )
    max_trigger_delay: str = key(
        STRING,
        "15m",
        "Streams: how long `minOffsetsPerTrigger` may delay records, as `90s`, `15m`, `1h`.",
        name="maxTriggerDelay",
        check=_IS_DURATION,
    )
    bucket_poll_interval: str = key(
        STRING,
        "10s",
        "Streams that read the bucket alone: how often it is polled for new segments.",
        name="bucketPollInterval",
        check=_IS_DURATION,
    )
    # Not in the repr: they may contain passwords and keys.
    kafka_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_manager_settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_brokers(self) -> bool:
        return BOOTSTRAP_SERVERS in self.kafka_properties

    @property
    def reads_tail(self) -> bool:
        return self.has_brokers if self.include_tail is None else self.include_tail

    @property
    def gaps(self) -> Gaps:
        return Gaps.REFUSED if self.fail_on_offset_gaps else Gaps.PERMITTED

    @property
    def isolation(self) -> str:
        return self.isolation_level or self.kafka_properties.get(
            ISOLATION_PROPERTY, READ_UNCOMMITTED
        )

    @property
    def reads_committed(self) -> bool:
        return self.isolation == READ_COMMITTED

    @property
    def metadata_source(self) -> str:
        return self.metadata or ("topic" if self.has_brokers else "bucket")

    @property
    def plans_by_name(self) -> bool:
        """Whether the names of segments suffice for planning. They do if the query looks up neither
        times nor transactions."""
        times = (
            self.starting_timestamp,
            self.starting_offsets_by_timestamp,
            self.ending_timestamp,
            self.ending_offsets_by_timestamp,
        )
        return not self.reads_committed and all(time is None for time in times)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions of `assign`. Empty if topics are chosen by name."""
        return parse_partitions(self.assign, "assign") if self.assign is not None else frozenset()

    @property
    def starting_limit(self) -> OffsetLimit:
        """The start of a batch query, whose default is `earliest`."""
        return self._starting_limit("earliest")

    @property
    def stream_starting_limit(self) -> OffsetLimit:
        return self._starting_limit("latest")

    def _starting_limit(self, default: str) -> OffsetLimit:
        return _limit(
            "starting",
            self.starting_timestamp,
            self.starting_offsets_by_timestamp,
            default if self.starting_offsets is None else self.starting_offsets,
        )

    @property
    def ending_limit(self) -> OffsetLimit:
        return _limit(
            "ending",
            self.ending_timestamp,
            self.ending_offsets_by_timestamp,
            self.ending_offsets,
        )

    @property
    def max_trigger_delay_ms(self) -> int:
        return duration_ms(self.max_trigger_delay) or 0

    @property
    def bucket_poll_interval_ms(self) -> int:
        return duration_ms(self.bucket_poll_interval) or 0

    def selects_topic(self, topic: str) -> bool:
        """Whether the query reads this topic, or some partitions of it."""
        if self.subscribe_pattern is not None:
            return topic_pattern(self.subscribe_pattern).selects(topic)
        return topic in self.named_topics

    @property
    def named_topics(self) -> frozenset[str]:
        """The topics of `subscribe` or `assign`. Empty with a pattern."""
        return frozenset(self.subscribe) | {partition.topic for partition in self.assigned}


def source_option_keys() -> dict[str, ConfigKey]:
    """Every declared option by its name, in the order of the documentation."""
    return {name: declared for name, (_, declared) in config_keys(SourceOptions).items()}


def needs_built_in(class_name: str) -> ConfigError:
    """The error for a feature that needs the objects of a built-in layout, if the options name a
    user's RemoteStorageManager."""
    return ConfigError(
        "this needs the objects of a built-in layout, and a storage manager of your own has a"
        f" layout of its own option={STORAGE_MANAGER_KEY} value={class_name}"
        " hint='leave the class out, and name the bucket with --path'"
    )


def storage_url(path: str) -> str:
    """The URL of the tier: `path` itself, or a file URL if `path` is that of a folder."""
    return path if "://" in path else Path(path).absolute().as_uri()


def _limit(
    edge: str, timestamp_ms: TimestampMs | None, by_timestamp: str | None, offsets: str
) -> OffsetLimit:
    if timestamp_ms is not None:
        return GlobalTimestamp(timestamp_ms)
    if by_timestamp is not None:
        return SpecificTimestamps(
            parse_partition_timestamps(by_timestamp, f"{edge}OffsetsByTimestamp")
        )
    match offsets.strip().lower():
        case "earliest":
            return EarliestOffsets()
        case "latest":
            return LatestOffsets()
        case _:
            return SpecificOffsets(parse_partition_offsets(offsets, f"{edge}Offsets"))
