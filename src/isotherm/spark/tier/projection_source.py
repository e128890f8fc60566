"""Lists remote segments from a projection of the metadata topic: the option `metadata=table`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.metadata.projection import read_segments
from isotherm.spark.metadata.segment_frames import segments_of
from isotherm.types import TopicIdPartition

_VISIBLE = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name


class TableSegmentSource:
    """`SegmentSource` over a projection. Each call reads its current state."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        wanted = None if partitions is None else frozenset(partitions)
        found: list[RemoteLogSegmentMetadata] = []
        for table in read_segments(self._settings, filters=[("state", "=", _VISIBLE)]):
            names: list[Any] = pc.unique(table["topic"]).to_pylist()
            topics = [name for name in names if selects_topic(name)]
            chosen = table.filter(pc.is_in(table["topic"], pa.array(topics, pa.string())))
            for batch in chosen.to_batches():
                found += [
                    segment
                    for segment in segments_of(batch)
                    if wanted is None or segment.topic_id_partition in wanted
                ]
        return found
