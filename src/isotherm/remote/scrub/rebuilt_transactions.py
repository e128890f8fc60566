"""Rebuilds a transaction index from the log of its segment if the store has lost it or it is wrong.

An absent index looks like that of a segment without aborted transactions. The metadata of Apache
Kafka before 3.9 do not distinguish the two, and a consumer would get aborted records as committed.
The segment's producer snapshot is a cheap check: if no producer has ever ended a transaction, the
index is empty. Otherwise the segment is read once, a range at a time (docs/decisions/0083).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from isotherm.errors import CorruptDataError, CorruptObjectError, RemoteResourceNotFoundError
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.segment_blocks import segment_blocks
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.transaction_index import encode_transaction_index
from isotherm.types import NO_COORDINATOR_EPOCH

if TYPE_CHECKING:
    from isotherm.remote.scrub.producer_checks import ProducersBefore

_logger = logging.getLogger(__name__)

FETCH_BYTES = 8 * 1024 * 1024
"""Bytes of the segment's log in memory at a time. Each batch takes some 80 bytes besides."""


class TransactionIndexRebuild:
    """Thread-safe."""

    def __init__(self, storage: RemoteStorageManager, metadata: RemoteLogMetadataManager) -> None:
        self._storage = storage
        self._metadata = metadata

    def __call__(self, segment: RemoteLogSegmentMetadata) -> bytes:
        """The content of the index. Raises what the storage manager raises, and CorruptObjectError
        if the log cannot be read to its end."""
        from isotherm.remote.scrub.log_batches import read_log_batches
        from isotherm.remote.scrub.producer_checks import Transactions

        snapshot = self._storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        producers = read_producer_snapshot(snapshot)
        if all(producer.coordinator_epoch == NO_COORDINATOR_EPOCH for producer in producers):
            return b""
        size = segment.segment_size_in_bytes
        blocks = segment_blocks(self._storage, segment, FETCH_BYTES)
        batches = read_log_batches(blocks, size, with_records=False)
        # Only a sound log may become an index, which has no CRC and would be trusted from now on.
        if batches.problems:
            raise CorruptObjectError(
                "transaction index is lost, and the segment it could be made from is damaged"
                f" segment={segment.segment_id} reason={batches.problems[0].detail!r}"
            )
        entries = Transactions(batches, self._producers_before(segment)).aborted()
        _logger.warning(
            "transaction index was made again from its segment segment=%s size=%d entries=%d"
            " hint='`isotherm pipeline scrub` lists the lost objects'",
            segment.segment_id,
            size,
            len(entries),
        )
        return encode_transaction_index(entries)

    def _producers_before(self, segment: RemoteLogSegmentMetadata) -> ProducersBefore | None:
        """The producers at the end of the segment that ends where this one begins. None if there is
        no such segment: earlier transactions then count from their first batch here."""
        from isotherm.remote.scrub.producer_checks import ProducersBefore

        if segment.start_offset == 0:
            return ProducersBefore.of([])
        for log_segment in self._metadata.list_remote_log_segments(segment.topic_id_partition):
            is_before = log_segment.end_offset_inclusive + 1 == segment.start_offset
            if is_before and log_segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                with suppress(RemoteResourceNotFoundError, CorruptDataError):
                    snapshot = self._storage.fetch_index(log_segment, IndexType.PRODUCER_SNAPSHOT)
                    return ProducersBefore.of(read_producer_snapshot(snapshot))
        return None
