"""Reads the state of a cluster's topics from its brokers: offsets, bytes on their disks, settings.

However many partitions there are, each broker gets five requests, and one broker two more. Source:
KIP-405 and KIP-1005 for the timestamps of ListOffsets, KIP-113 for DescribeLogDirs.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import IsothermError, UnsupportedVersionError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.storage_view.local_holds import SEGMENT_BYTES_DEFAULT, TierSettings
from isotherm.storage_view.partition_storage import LocalTier, Retention
from isotherm.types import (
    NO_LEADER_EPOCH,
    REMOTE_LOG_DIR,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    TopicPartition,
)

BROKERS_AT_ONCE = 8
TOPIC_RESOURCE = 2
LATEST = -1
EARLIEST = -2
_EARLIEST_LOCAL = -4
READ_UNCOMMITTED = 0
_READ_COMMITTED = 1
# The newest versions of the requests that this module knows.
_METADATA_VERSION = 12
_LIST_OFFSETS_VERSION = 9
_LIST_OFFSETS_VERSION_OF_TIERS = 8
_LOG_DIRS_VERSION = 4
_CONFIGS_VERSION = 4
_SETTINGS = (
    *("remote.storage.enable", "remote.log.copy.disable", "segment.bytes"),
    *("retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes"),
)
# An Isotherm broker closes the connection of a request with more than 20,000 items of arrays. A
# topic takes one for itself and one for each of its settings or partitions.
TOPICS_AT_ONCE = 1000
PARTITIONS_AT_ONCE = 5000
_AS_TOTAL = -2  # local.retention.*: the same as retention.*

Offsets: TypeAlias = Mapping[TopicPartition, Offset]
Settings: TypeAlias = Mapping[str, str]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LogDirState:
    """A log directory. `size_in_bytes` are its replicas, `total_bytes` and `usable_bytes` those of
    its volume; None in releases that do not report them (KIP-827). `error` is the reason if it is
    offline."""

    path: str
    size_in_bytes: int
    total_bytes: int | None
    usable_bytes: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker. `error` is the reason if it did not answer. `local_bytes` are of the topics that
    the reader wants, those of `log_dirs` of all topics."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    local_bytes: int
    error: str | None
    log_dirs: tuple[LogDirState, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition. If no leader answers, `local` is None and `error` is the reason.
    `replica_bytes` are the bytes that each replica's broker has on its disks. `disks_error` is the
    reason if the leader does not show its disks, whose bytes then count as 0."""

    partition: TopicIdPartition
    leader: BrokerId
    replicas: tuple[BrokerId, ...]
    in_sync_replicas: tuple[BrokerId, ...]
    replica_bytes: Mapping[BrokerId, int]
    local: LocalTier | None
    error: str | None
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    disks_error: str | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic. `settings_error` is the reason if its settings cannot be read, for example because
    the client may not: what depends on them is then that of a topic without any."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool
    is_tiered: bool
    retention: Retention
    partitions: tuple[PartitionState, ...]
    tier_settings: TierSettings
    settings_error: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    cluster_id: str
    controller_id: BrokerId
    brokers: tuple[BrokerState, ...]
    topics: tuple[TopicState, ...]


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of one broker: the offsets of the partitions that it leads, and the bytes of all
    its replicas. `disks_error` is the reason if it does not show these."""

    log_start: Offsets
    local_log_start: Offsets
    last_stable: Offsets
    high_watermark: Offsets
    sizes: Mapping[TopicPartition, int]
    log_dirs: tuple[LogDirState, ...]
    disks_error: str | None


def read_cluster(client: ClusterClient, wants_topic: Callable[[str], bool]) -> ClusterState:
    """The state of the topics that `wants_topic` accepts, in the order of their names. If a broker
    does not answer, it and its partitions have an error. Raises BrokerUnreachableError if none
    answers."""
    metadata = _metadata(client)
    topics = sorted((topic for topic in metadata.topics if wants_topic(topic.name)), key=_name)
    settings = _topic_settings(client, [topic.name for topic in topics])
    led: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
    for topic in topics:
        for partition in topic.partitions:
            led[partition.leader_id].append(TopicPartition(topic.name, partition.partition_index))
    names = {topic.name for topic in topics}

    def ask(broker: Any) -> _Answers | IsothermError:
        address = NodeAddress(broker.host, broker.port)
        try:
            return _ask_broker(client, address, led.get(broker.node_id, []), names)
        except IsothermError as error:
            return error

    with ThreadPoolExecutor(BROKERS_AT_ONCE, "isotherm-storage-view") as pool:
        answers = dict(
            zip(
                [broker.node_id for broker in metadata.brokers],
                pool.map(ask, metadata.brokers),
                strict=True,
            )
        )
    return ClusterState(
        str(metadata.cluster_id),
        metadata.controller_id,
        tuple(_broker_state(broker, answers[broker.node_id]) for broker in metadata.brokers),
        tuple(_topic_state(topic, *settings[topic.name], answers) for topic in topics),
    )


def list_topic_names(client: ClusterClient) -> list[str]:
    """The names of all topics. Raises BrokerUnreachableError."""
    return [_name(topic) for topic in _metadata(client).topics]


def _metadata(client: ClusterClient) -> Any:
    fields = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return client.ask_any(ApiKey.METADATA, fields, newest=_METADATA_VERSION)


def _name(topic: Any) -> str:
    return str(topic.name)


def _topic_settings(
    client: ClusterClient, names: Sequence[str]
) -> dict[str, tuple[Settings, str | None]]:
    """The settings of each topic, empty with the reason if they cannot be read."""
    settings: dict[str, tuple[Settings, str | None]] = {}
    for some in _parts(names, TOPICS_AT_ONCE):
        resources = [
            {
                "resource_type": TOPIC_RESOURCE,
                "resource_name": name,
                "configuration_keys": _SETTINGS,
            }
            for name in some
        ]
        answer = client.ask_any(
            ApiKey.DESCRIBE_CONFIGS, {"resources": resources}, newest=_CONFIGS_VERSION
        )
        for result in answer.results:
            code = result.error_code
            settings[result.resource_name] = (
                {entry.name: entry.value for entry in result.configs},
                None if code is ErrorCode.none else code_name(code),
            )
    return settings


def _parts(sequence: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(sequence), size):
        yield sequence[start : start + size]


def _ask_broker(
    client: ClusterClient,
    address: NodeAddress,
    led: Sequence[TopicPartition],
    topics: set[str],
) -> _Answers:
    def offsets(
        timestamp: int, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        return list_offsets(client, address, led, timestamp, isolation_level)

    log_start = offsets(EARLIEST)
    try:
        local_log_start = offsets(_EARLIEST_LOCAL)
    except UnsupportedVersionError:
        # This release has no tiered storage, so the whole log is local.
        local_log_start = log_start
    return _Answers(
        log_start,
        local_log_start,
        offsets(LATEST, _READ_COMMITTED),
        offsets(LATEST),
        *_disks(client, address, topics),
    )


def list_offsets(
    client: ClusterClient,
    address: NodeAddress,
    partitions: Sequence[TopicPartition],
    timestamp: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, Offset]:
    """The offset of each partition at a ListOffsets timestamp. Partitions that the broker refuses
    are left out, for example because their leader has just moved."""
    offsets: dict[TopicPartition, Offset] = {}
    for some in _parts(partitions, PARTITIONS_AT_ONCE):
        by_topic: dict[str, list[dict[str, int]]] = defaultdict(list)
        for topic, partition in some:
            by_topic[topic].append({"partition_index": partition, "timestamp": timestamp})
        answer = client.ask(
            address,
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": -1,  # a consumer
                "isolation_level": isolation_level,
                "topics": [
                    {"name": name, "partitions": fields} for name, fields in by_topic.items()
                ],
            },
            newest=_LIST_OFFSETS_VERSION,
            oldest=_LIST_OFFSETS_VERSION_OF_TIERS if timestamp == _EARLIEST_LOCAL else 1,
        )
        offsets |= {
            TopicPartition(named.name, partition.partition_index): partition.offset
            for named in answer.topics
            for partition in named.partitions
            if partition.error_code is ErrorCode.none
        }
    return offsets


def _disks(
    client: ClusterClient, address: NodeAddress, topics: set[str]
) -> tuple[dict[TopicPartition, int], tuple[LogDirState, ...], str | None]:
    """The local bytes of each replica of the broker, and its log directories; or the reason why it
    does not show them. A replica that moves between log directories counts once."""
    answer = client.ask(
        address, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, newest=_LOG_DIRS_VERSION
    )
    local = [result for result in answer.results if not result.log_dir.startswith(REMOTE_LOG_DIR)]
    sizes = {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for directory in local
        for topic in directory.topics
        if topic.name in topics
        for partition in topic.partitions
        if not partition.is_future_key
    }
    # Releases before version 3 of the request say nothing.
    code = getattr(answer, "error_code", ErrorCode.none)
    return sizes, tuple(map(_log_dir, local)), None if code is ErrorCode.none else code_name(code)


def _log_dir(directory: Any) -> LogDirState:
    partitions = (partition for topic in directory.topics for partition in topic.partitions)
    code = directory.error_code
    return LogDirState(
        directory.log_dir,
        sum(partition.partition_size for partition in partitions),
        _size(directory, "total_bytes"),
        _size(directory, "usable_bytes"),
        None if code is ErrorCode.none else code_name(code),
    )


def _size(directory: Any, name: str) -> int | None:
    size = getattr(directory, name, -1)
    return None if size < 0 else int(size)


def _broker_state(broker: Any, answers: _Answers | IsothermError) -> BrokerState:
    place = (broker.node_id, broker.host, broker.port, broker.rack)
    if isinstance(answers, IsothermError):
        return BrokerState(*place, local_bytes=0, error=str(answers))
    size = sum(answers.sizes.values())
    return BrokerState(*place, local_bytes=size, error=None, log_dirs=answers.log_dirs)


def _topic_state(
    topic: Any,
    settings: Settings,
    settings_error: str | None,
    answers_by_broker: Mapping[BrokerId, _Answers | IsothermError],
) -> TopicState:
    partitions = sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    return TopicState(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        settings.get("remote.storage.enable") == "true",
        _retention(settings),
        tuple(_partition_state(topic, partition, answers_by_broker) for partition in partitions),
        _tier_settings(settings),
        settings_error,
    )


def _retention(settings: Settings) -> Retention:
    return Retention(
        int(settings.get("retention.ms", -1)), int(settings.get("retention.bytes", -1))
    )


def _tier_settings(settings: Settings) -> TierSettings:
    total = _retention(settings)
    ms, size = (int(settings.get(f"local.retention.{unit}", -2)) for unit in ("ms", "bytes"))
    return TierSettings(
        Retention(total.ms if ms == _AS_TOTAL else ms, total.bytes if size == _AS_TOTAL else size),
        int(settings.get("segment.bytes", SEGMENT_BYTES_DEFAULT)),
        settings.get("remote.log.copy.disable") == "true",
    )


def _partition_state(
    topic: Any, partition: Any, answers_by_broker: Mapping[BrokerId, _Answers | IsothermError]
) -> PartitionState:
    place = TopicPartition(topic.name, partition.partition_index)
    sizes = {
        broker: answers.sizes[place]
        for broker in partition.replica_nodes
        if isinstance(answers := answers_by_broker.get(broker), _Answers) and place in answers.sizes
    }
    local, error = _local_tier(place, partition.leader_id, answers_by_broker)
    leader = answers_by_broker.get(partition.leader_id)
    if leader is None:
        error = _no_leader(partition.offline_replicas, answers_by_broker)
    return PartitionState(
        TopicIdPartition(topic.topic_id, *place),
        partition.leader_id,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
        sizes,
        local,
        error,
        partition.leader_epoch,
        leader.disks_error if isinstance(leader, _Answers) else None,
    )


def _no_leader(
    offline: Sequence[BrokerId], answers_by_broker: Mapping[BrokerId, _Answers | IsothermError]
) -> str:
    """Why a partition has no leader. A replica is offline on a broker that answers if its log
    directory has failed."""
    if not offline:
        return "no leader"
    numbers = ", ".join(map(str, offline))
    failed = any(isinstance(answers_by_broker.get(broker_id), _Answers) for broker_id in offline)
    where = "in a log directory that cannot be used" if failed else "as the broker is down"
    return f"no leader: the replica of broker {numbers} is offline, {where}"


def _local_tier(
    place: TopicPartition,
    leader: BrokerId,
    answers_by_broker: Mapping[BrokerId, _Answers | IsothermError],
) -> tuple[LocalTier | None, str | None]:
    answers = answers_by_broker.get(leader)
    if answers is None:
        return None, "no leader"
    if isinstance(answers, IsothermError):
        return None, str(answers)
    columns = (
        answers.log_start,
        answers.local_log_start,
        answers.last_stable,
        answers.high_watermark,
    )
    if not all(place in column for column in columns):
        return None, f"broker {leader} does not answer as its leader"
    log_start, local_log_start, last_stable, high_watermark = (column[place] for column in columns)
    size = answers.sizes.get(place, 0)
    return LocalTier(
        log_start_offset=log_start,
        # -1 means that the log has no local records.
        local_log_start_offset=local_log_start if local_log_start >= 0 else high_watermark,
        last_stable_offset=last_stable,
        high_watermark=high_watermark,
        size_in_bytes=size,
        shows_bytes=size > 0 or not 0 <= local_log_start < high_watermark,
    ), None
