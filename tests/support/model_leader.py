"""A leader with a log in this process, which answers followers by the rules of Kafka's leader.

Source: Kafka Partition.fetchRecords, ReplicaManager.fetchOffset; observations of a real leader are
in the docstrings of the tests. It has no fetch sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.replication.leader_endpoint import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LookUpError,
    OffsetAndEpoch,
)
from isotherm.errors import OffsetOutOfRangeError, PeerDisconnectedError
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.types import TopicIdPartition


@dataclass
class ModelLeader:
    """The leader.

    `faults` has errors for the next answers, by partition; `alter` changes each answer.
    """

    logs: dict[TopicIdPartition, PartitionLog]
    epochs: dict[TopicIdPartition, int]
    requests: list[FetchRequest] = field(default_factory=list)
    faults: dict[int, int] = field(default_factory=dict)
    alter: Callable[[FetchPartitionResponse], FetchPartitionResponse] = lambda answer: answer
    before_answer: Callable[[], None] = lambda: None
    waits: Callable[[], None] | None = None
    """Called while a fetch is under way, before its answer."""
    is_interrupted: bool = False
    is_away: bool = False
    pending_upload: int = -1

    def fetch(self, request: FetchRequest) -> FetchResponse:
        if self.is_away:
            raise PeerDisconnectedError("no connection")
        self.requests.append(request)
        self.is_interrupted = False
        if self.waits is not None:
            self.waits()
        if self.is_interrupted:
            raise PeerDisconnectedError("the wait was ended")
        topics = [
            FetchTopicResponse(
                None,
                topic.topic_id,
                [
                    self.alter(self._read(self._place(topic.topic_id, asked.partition), asked))
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        self.before_answer()
        return FetchResponse(topics)

    def _place(self, topic_id: object, partition: int) -> TopicIdPartition:
        [place] = [p for p in self.logs if (p.topic_id, p.partition) == (topic_id, partition)]
        return place

    def _read(self, place: TopicIdPartition, asked: FetchPartition) -> FetchPartitionResponse:
        log = self.logs[place]
        answer = FetchPartitionResponse(
            place.partition, 0, log.high_watermark, -1, log.log_start_offset
        )
        fault = self.faults.pop(place.partition, None) or self._epoch_fault(
            place, asked.current_leader_epoch
        )
        if fault:
            return FetchPartitionResponse(place.partition, fault)
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.leader_epochs.end_offset_for(
                asked.last_fetched_epoch, log.log_end_offset
            )
            if epoch < 0 or asked.fetch_offset < log.log_start_offset:
                return FetchPartitionResponse(place.partition, ErrorCode.offset_out_of_range)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                return answer._replace(diverging_epoch=EpochEndOffset(epoch, end))
        try:
            read = log.read(
                asked.fetch_offset, asked.partition_max_bytes, isolation=FetchIsolation.LOG_END
            )
        except OffsetOutOfRangeError:
            is_remote = log.log_start_offset <= asked.fetch_offset < log.local_log_start_offset
            error = (
                ErrorCode.offset_moved_to_tiered_storage
                if is_remote
                else ErrorCode.offset_out_of_range
            )
            return FetchPartitionResponse(place.partition, error)
        return answer._replace(records=(read.records,) if len(read.records) else ())

    def _epoch_fault(self, place: TopicIdPartition, epoch: int) -> int:
        current = self.epochs[place]
        if epoch == current:
            return 0
        return ErrorCode.fenced_leader_epoch if epoch < current else ErrorCode.unknown_leader_epoch

    def _check(self, place: TopicIdPartition, leader_epoch: int) -> PartitionLog:
        if self.is_away:
            raise PeerDisconnectedError("no connection")
        fault = self._epoch_fault(place, leader_epoch)
        if fault:
            raise LookUpError("refused", ErrorCode(fault))
        return self.logs[place]

    def find_offset(
        self, place: TopicIdPartition, leader_epoch: int, timestamp: int
    ) -> OffsetAndEpoch:
        log = self._check(place, leader_epoch)
        self.before_answer()
        offset = {
            LATEST: log.log_end_offset,
            EARLIEST: log.log_start_offset,
            EARLIEST_LOCAL: log.local_log_start_offset,
        }.get(timestamp, self.pending_upload)
        epoch = log.leader_epochs.epoch_for_offset(offset)
        return OffsetAndEpoch(offset, -1 if epoch is None else epoch)

    def find_epoch_end(
        self, place: TopicIdPartition, leader_epoch: int, epoch: int
    ) -> EpochEndOffset:
        log = self._check(place, leader_epoch)
        return EpochEndOffset(*log.leader_epochs.end_offset_for(epoch, log.log_end_offset))

    def interrupt(self) -> None:
        self.is_interrupted = True

    def close(self) -> None:
        self.is_away = True
