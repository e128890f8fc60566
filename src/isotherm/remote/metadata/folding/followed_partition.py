"""One partition of the metadata topic, folded once and then followed, for readers outside a
broker's metadata manager: Spark's driver, the console, a migration."""

from __future__ import annotations

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.folding.fold import (
    COLUMNAR_RECORDS_MIN,
    OnCorrupt,
    fold_metadata_partition,
    has_all_below,
    refuse,
)
from isotherm.remote.metadata.folding.selected_partitions import (
    SelectedPartitions,
    SelectsPartition,
)
from isotherm.remote.metadata.wire.events import DEFAULT_READ_MAX_BYTES
from isotherm.types import Offset


class FollowedPartition:
    """The partitions that `selects` accepts, also those whose first event comes later. Not
    thread-safe.

    For `on_corrupt` see `fold_metadata_partition`. Every record below `next_offset` is applied.
    `next_offset` is -1 until the first `catch_up`.
    """

    def __init__(
        self,
        topic: MetadataTopic,
        number: int,
        selects: SelectsPartition,
        on_corrupt: OnCorrupt = refuse,
        *,
        columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    ) -> None:
        self._topic = topic
        self._number = number
        self._selects = selects
        self._on_corrupt = on_corrupt
        self._columnar_records_min = columnar_records_min
        self.partitions = SelectedPartitions(selects)
        self.next_offset: Offset = -1

    def catch_up(self, end: Offset | None = None) -> int:
        """Apply all records below `end`, perhaps more; the first call folds. `end` is by default
        the present end of the partition. Returns the number of offsets passed."""
        first, topic_end = self._topic.offsets(self._number)
        before = self.next_offset
        if before < 0:
            before = first
            folded = fold_metadata_partition(
                self._topic,
                self._number,
                self._selects,
                self._on_corrupt,
                columnar_records_min=self._columnar_records_min,
            )
            self.partitions.take_in(folded)
            self.next_offset = folded.next_offset
        end = topic_end if end is None else end
        has_all = has_all_below(self._topic, self._number, end)
        while self.next_offset < end:
            records = self._topic.read(self._number, self.next_offset, DEFAULT_READ_MAX_BYTES)
            for record in records:
                self._apply(record)
            # A replica is behind `end`: the next call continues.
            if not records and not has_all:
                break
            if not records:
                # Compaction may leave no record before the end.
                self.next_offset = end
        return self.next_offset - before

    def _apply(self, record: MetadataTopicRecord) -> None:
        try:
            self.partitions.apply(record)
        except CorruptMetadataError as error:
            self._on_corrupt(error)
        self.next_offset = record.offset + 1
