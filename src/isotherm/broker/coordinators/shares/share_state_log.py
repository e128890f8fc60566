"""Appends and reads the records of `__share_group_state`
(isotherm.broker.coordinators.coordinator_topic).

The topic is not compacted: every update counts. Instead, the log before the oldest snapshot that is
needed is deleted (`prune`). Source: Kafka ShareCoordinatorService.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isotherm.broker.coordinators.coordinator_shards import Election
from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.shares.share_shard import ShareShard
from isotherm.broker.coordinators.shares.share_state_records import (
    SHARE_STATE_TOPIC,
    ShareStateRecord,
    decode_record,
    encode_record,
)
from isotherm.clock import Clock
from isotherm.config.share_coordinator import ShareCoordinatorConfig
from isotherm.errors import CorruptMetadataError
from isotherm.record.batch import build_batch
from isotherm.record.compression import CompressionType
from isotherm.types import Offset


class ShareStateLog:
    def __init__(
        self, config: ShareCoordinatorConfig, partitions: CoordinatorTopic, clock: Clock
    ) -> None:
        self.partitions = partitions
        self._config = config
        self._clock = clock
        codec = config.share_coordinator_state_topic_compression_codec
        self._compression = CompressionType(codec)

    def append(self, shard: ShareShard, records: Sequence[ShareStateRecord]) -> None:
        """Append records as one batch, and apply them to the shard. Event loop thread only.

        Raises what `CoordinatorTopic.append` raises; then nothing has changed.
        """
        now_ms = self._clock.now_ms()
        encoded = map(encode_record, records)
        batch = build_batch(
            [(now_ms, key, value, ()) for key, value in encoded],
            compression=self._compression,
        )
        first_offset = self.partitions.append(shard, batch, now_ms)
        for index, record in enumerate(records):
            shard.replay(record, first_offset + index)

    def fold(self, index: int, election: Election | None = None) -> ShareShard:
        """The shard of a partition's log. Any thread.

        Raises CorruptMetadataError or CorruptRecordError with the offset of the bad record. See
        `CoordinatorTopic.read_batches` for `election`.
        """
        shard = self.new_shard(index)
        for offset, record in self._records(index, election):
            shard.replay(record, offset)
        return shard

    def new_shard(self, index: int) -> ShareShard:
        limit = self._config.share_coordinator_snapshot_update_records_per_snapshot
        return ShareShard(index, limit)

    def prune(self, shard: ShareShard) -> None:
        """Raise the log start to the first record that a load needs, of those that are committed.

        Raises the errors of `CoordinatorTopic.partition`.
        """
        offset = shard.redundant_offset()
        if offset is None:
            return
        partition = self.partitions.partition(shard.index)
        partition.check_is_leader()
        log = partition.log
        if log.log_start_offset < offset <= log.high_watermark:
            log.maybe_increment_log_start_offset(offset)

    def _records(
        self, index: int, election: Election | None
    ) -> Iterator[tuple[Offset, ShareStateRecord]]:
        buffer_size = self._config.share_coordinator_load_buffer_size
        for offset, key, value in self.partitions.read_records(index, buffer_size, election):
            record = _decoded(key, value, index, offset)
            if record is not None:
                yield offset, record


def _decoded(
    key: bytes | None, value: bytes | None, index: int, offset: Offset
) -> ShareStateRecord | None:
    try:
        return decode_record(key, value)
    except CorruptMetadataError as error:
        raise CorruptMetadataError(
            f"a record of a share group's state cannot be read"
            f" partition={SHARE_STATE_TOPIC}-{index} offset={offset}"
        ) from error
