"""The fetch of `__cluster_metadata-0` as an observer, and the outcome of its answer. Pure.

The request is Fetch version 18: the topic by id, no session, and the observer's high watermark, so
that the leader answers as soon as it has a higher one. The records of an answer go up to the
leader's log end; only those below the high watermark are committed.
Source: Kafka KafkaRaftClient.buildFetchRequest, handleFetchResponse;
RaftLog.validateOffsetAndEpoch.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.quorum.controller_discovery import LeaderHint
from isotherm.client.node_address import NodeAddress
from isotherm.errors import ConfigError, CorruptMetadataError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.types import CLUSTER_METADATA_TOPIC, LeaderEpoch, Offset

METADATA_TOPIC_ID = uuid.UUID(int=1)  # Kafka: Uuid.METADATA_TOPIC_ID
FETCH_VERSION = 18
FETCH_SNAPSHOT_VERSION = 1
FETCH_WAIT_MS = 500  # Kafka: KafkaRaftClient.MAX_FETCH_WAIT_MS

_SESSION_ID, _FULL_REQUEST = 0, -1
_UNKNOWN_HIGH_WATERMARK = -1


class Observer(NamedTuple):
    """This node in every request. `directory_id` is the id of the metadata log's directory."""

    node_id: int
    cluster_id: str
    directory_id: uuid.UUID


class LogPosition(NamedTuple):
    """The end of the observer's log. `last_epoch` is the epoch of the last batch, or of the
    snapshot that the log starts with; 0 without either. `high_watermark` is the observer's; -1 if
    it is unknown."""

    end_offset: Offset
    last_epoch: LeaderEpoch
    high_watermark: Offset


class SnapshotId(NamedTuple):
    """`end_offset` is the first offset after the snapshot, `epoch` the epoch of its last record."""

    end_offset: Offset
    epoch: LeaderEpoch


def fetch_request(observer: Observer, epoch: int, position: LogPosition, max_bytes: int) -> Any:
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": position.end_offset,
        "last_fetched_epoch": position.last_epoch,
        "log_start_offset": -1,
        # A leader of the quorum ignores it: the request's `max_bytes` counts.
        "partition_max_bytes": 0,
        "replica_directory_id": observer.directory_id,
        "high_watermark": position.high_watermark,
    }
    return entity_of(
        request_class(ApiKey.FETCH, FETCH_VERSION),
        {
            "max_wait": datetime.timedelta(milliseconds=FETCH_WAIT_MS),
            "min_bytes": 0,
            "max_bytes": max_bytes,
            "isolation_level": 0,
            "session_id": _SESSION_ID,
            "session_epoch": _FULL_REQUEST,
            "topics": [{"topic_id": METADATA_TOPIC_ID, "partitions": [partition]}],
            "forgotten_topics_data": [],
            "rack_id": "",
            "cluster_id": observer.cluster_id,
            "replica_state": {"replica_id": observer.node_id},
        },
    )


class Append(NamedTuple):
    """`records` may be empty: perhaps only the high watermark has moved, or nothing has changed."""

    records: memoryview
    high_watermark: Offset


class Truncate(NamedTuple):
    """The logs diverge. In the leader's log `epoch` ends at `end_offset`."""

    epoch: LeaderEpoch
    end_offset: Offset


class DownloadSnapshot(NamedTuple):
    snapshot_id: SnapshotId


FetchOutcome: TypeAlias = Append | Truncate | DownloadSnapshot


def leader_hint(response: Any) -> LeaderHint:
    """The leader that an answer names.

    Raises ConfigError if the controllers belong to another cluster.
    """
    _check_cluster(response.error_code)
    addresses = {
        int(node.node_id): NodeAddress(node.host, node.port) for node in response.node_endpoints
    }
    if response.error_code != ErrorCode.none:
        # Such an answer has no partition, and so names no leader.
        return LeaderHint(response.error_code, -1, -1, addresses)
    partition = _partition(response.responses)
    leader = partition.current_leader
    return LeaderHint(partition.error_code, leader.leader_id, leader.leader_epoch, addresses)


def fetch_outcome(response: Any) -> FetchOutcome:
    """The outcome of an answer with the verdict USE (see `controller_discovery`)."""
    partition = _partition(response.responses)
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    if diverging.epoch >= 0:
        return Truncate(int(diverging.epoch), int(diverging.end_offset))
    if snapshot.epoch >= 0 or snapshot.end_offset >= 0:
        if snapshot.epoch < 0 or snapshot.end_offset < 0:
            raise CorruptMetadataError(f"a controller names an invalid snapshot id={snapshot}")
        return DownloadSnapshot(SnapshotId(int(snapshot.end_offset), int(snapshot.epoch)))
    records = partition.records
    return Append(
        memoryview(b"" if records is None else records),
        max(int(partition.high_watermark), _UNKNOWN_HIGH_WATERMARK),
    )


def snapshot_request(
    observer: Observer, epoch: int, snapshot_id: SnapshotId, position: int, max_bytes: int
) -> Any:
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "snapshot_id": snapshot_id._asdict(),
        "position": position,
        "replica_directory_id": observer.directory_id,
    }
    return entity_of(
        request_class(ApiKey.FETCH_SNAPSHOT, FETCH_SNAPSHOT_VERSION),
        {
            "replica_id": observer.node_id,
            "max_bytes": max_bytes,
            "topics": [{"name": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
            "cluster_id": observer.cluster_id,
        },
    )


class SnapshotPiece(NamedTuple):
    size: int
    """The bytes of the whole snapshot."""
    position: int
    data: memoryview


def snapshot_piece(response: Any) -> SnapshotPiece | None:
    """The piece in an answer; None if there is none. The next fetch of the log then shows how to
    continue.

    Kafka 4.3.1 answers every error of the partition as UNKNOWN_SERVER_ERROR without a topic.
    """
    _check_cluster(response.error_code)
    if response.error_code != ErrorCode.none or not response.topics:
        return None
    partition = _partition(response.topics)
    if partition.error_code != ErrorCode.none:
        return None
    return SnapshotPiece(
        int(partition.size), int(partition.position), memoryview(partition.unaligned_records)
    )


def _check_cluster(error: ErrorCode) -> None:
    if error == ErrorCode.inconsistent_cluster_id:
        raise ConfigError(
            "the controllers are of another cluster than this broker's log directories: correct"
            " controller.quorum.bootstrap.servers, or format empty directories with the cluster's"
            " id"
        )


def _partition(topics: Any) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise CorruptMetadataError("a controller's response is not for the requested partitions")
    return topics[0].partitions[0]
