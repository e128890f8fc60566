"""A controller that serves the metadata log from a test's batches.

The answers follow KafkaRaftClient.handleFetchRequest and RaftLog.validateOffsetAndEpoch of Kafka
4.3.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.metadata_records import MetadataRecord
from isotherm.broker.metadata.quorum.metadata_fetch import METADATA_TOPIC_ID, SnapshotId
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.framed_messages import encode_framed
from isotherm.record.batch import NewRecord, build_batch
from tests.support.scripted_peer import ScriptedPeer


class Batch(NamedTuple):
    base_offset: int
    end_offset: int
    epoch: int
    data: bytes


class ScriptedQuorum:
    """A controller with a log.

    A test may change attributes between requests; to change several at once it holds `changes`.
    """

    def __init__(self, controller_id: int = 100) -> None:
        self.controller_id = controller_id
        self.leader_id = controller_id
        self.epoch = 1
        self.batches: list[Batch] = []
        self.high_watermark = 0
        self.snapshot: tuple[SnapshotId, bytes] | None = None
        self.endpoints: dict[int, tuple[str, int]] = {}
        self.error = ErrorCode.none
        """Errors of the next fetch responses."""
        self.snapshot_errors = 0
        """The number of next FetchSnapshot requests that fail."""
        self.changes = threading.RLock()
        self.peer = ScriptedPeer(self._answer_whole)
        self.endpoints[controller_id] = (self.peer.address.host, self.peer.address.port)

    @property
    def start_offset(self) -> int:
        return self.snapshot[0].end_offset if self.snapshot is not None else 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.start_offset

    def append(self, *records: MetadataRecord | bytes, is_committed: bool = True) -> None:
        values = [
            record if isinstance(record, bytes) else encode_framed(record) for record in records
        ]
        base = self.end_offset
        data = build_batch(
            [NewRecord(0, None, value) for value in values],
            base_offset=base,
            partition_leader_epoch=self.epoch,
        )
        self.batches.append(Batch(base, base + len(values), self.epoch, bytes(data)))
        if is_committed:
            self.high_watermark = self.end_offset

    def forget(self, end_offset: int) -> None:
        """Drop the batches from this offset on: their leader was lost before they were
        committed."""
        self.batches = [batch for batch in self.batches if batch.end_offset <= end_offset]

    def stop(self) -> None:
        self.peer.stop()

    @property
    def fetches(self) -> list[Any]:
        return [request for request in self.peer.requests if request.__api_key__ == ApiKey.FETCH]

    def _answer_whole(self, request: Any) -> Mapping[str, Any] | None:
        with self.changes:
            return self._answer(request)

    def _answer(self, request: Any) -> Mapping[str, Any] | None:
        if request.__api_key__ == ApiKey.FETCH_SNAPSHOT:
            return self._fetch_snapshot(request)
        assert request.__api_key__ == ApiKey.FETCH
        if self.error != ErrorCode.none:
            return {"error_code": self.error}
        (topic,) = request.topics
        (asked,) = topic.partitions
        assert topic.topic_id == METADATA_TOPIC_ID
        assert asked.last_fetched_epoch <= asked.current_leader_epoch, "would be INVALID_REQUEST"
        fields = {
            "partition_index": 0,
            "current_leader": {"leader_id": self.leader_id, "leader_epoch": self.epoch},
            "high_watermark": self.high_watermark,
            "last_stable_offset": -1,
            **self._partition(request, asked),
        }
        return {
            "responses": [{"topic_id": topic.topic_id, "partitions": [fields]}],
            "node_endpoints": [
                {"node_id": node_id, "host": host, "port": port}
                for node_id, (host, port) in self.endpoints.items()
            ],
        }

    def _partition(self, request: Any, asked: Any) -> Mapping[str, Any]:
        if asked.current_leader_epoch < self.epoch:
            return {"error_code": ErrorCode.fenced_leader_epoch, "high_watermark": -1}
        if asked.current_leader_epoch > self.epoch:
            return {"error_code": ErrorCode.unknown_leader_epoch, "high_watermark": -1}
        if self.leader_id != self.controller_id:
            return {"error_code": ErrorCode.not_leader_or_follower, "high_watermark": -1}
        offset, last_epoch = asked.fetch_offset, asked.last_fetched_epoch
        if self.snapshot is not None:
            snapshot_id = self.snapshot[0]
            is_behind = offset < snapshot_id.end_offset or last_epoch < snapshot_id.epoch
            if offset == 0 or is_behind:
                return {"snapshot_id": snapshot_id._asdict()}
        epoch, end_offset = self._end_of(last_epoch)
        if offset > 0 and (epoch != last_epoch or end_offset < offset):
            return {"diverging_epoch": {"epoch": epoch, "end_offset": end_offset}}
        return {"records": self._records(offset, request.max_bytes)}

    def _end_of(self, epoch: int) -> tuple[int, int]:
        found = [batch for batch in self.batches if batch.epoch <= epoch]
        if found:
            return found[-1].epoch, found[-1].end_offset
        if self.snapshot is not None:
            return self.snapshot[0].epoch, self.snapshot[0].end_offset
        return 0, 0

    def _records(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for batch in self.batches:
            if batch.base_offset >= offset and (
                not data or len(data) + len(batch.data) <= max_bytes
            ):
                data += batch.data
        return data

    def _fetch_snapshot(self, request: Any) -> Mapping[str, Any] | None:
        (topic,) = request.topics
        (asked,) = topic.partitions
        found = self.snapshot
        if self.snapshot_errors or found is None or tuple(found[0]) != (
            asked.snapshot_id.end_offset, asked.snapshot_id.epoch
        ):  # fmt: skip
            self.snapshot_errors -= 1
            # Kafka 4.3.1 answers every error of the partition like this.
            return {"error_code": ErrorCode.unknown_server_error}
        piece = found[1][asked.position : asked.position + request.max_bytes]
        partition = {
            "index": 0,
            "snapshot_id": found[0]._asdict(),
            "current_leader": {"leader_id": self.leader_id, "leader_epoch": self.epoch},
            "size": len(found[1]),
            "position": asked.position,
            "unaligned_records": piece,
        }
        return {"topics": [{"name": topic.name, "partitions": [partition]}]}


def concatenated(batches: Iterable[Batch]) -> bytes:
    return b"".join(batch.data for batch in batches)
