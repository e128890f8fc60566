"""The remote segments of one partition as columns, so that a hundred thousand are summed in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from isotherm.remote.metadata.state.segment_columns import epoch_starts_of_rows, heads_of_rows
from isotherm.remote.metadata.state.segment_rows import pack_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSegments:
    """Columns with one element for each live segment, ordered by start offset, then end offset.

    `end_offset` is inclusive. `state` has the ids of RemoteLogSegmentState, and `ids` the 16 bytes
    of the segments' ids. `epoch_starts` has the first offset of each leader epoch in the segments.
    """

    ids: list[bytes]
    start_offset: Int64Array
    end_offset: Int64Array
    size_in_bytes: Int64Array
    max_timestamp_ms: Int64Array
    event_timestamp_ms: Int64Array
    state: Int64Array
    epoch_starts: Mapping[LeaderEpoch, Offset] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of_rows(cls, rows: Mapping[bytes, bytes]) -> Self:
        """Build the columns from the rows of a RemoteLogMetadataCache, by segment id."""
        heads = heads_of_rows(rows.values())
        order = np.lexsort((heads["end_offset"], heads["start_offset"]))
        ids = list(rows)
        columns = [
            heads[name][order].astype(np.int64)
            for name in (
                *("start_offset", "end_offset", "size_in_bytes"),
                *("max_timestamp_ms", "event_timestamp_ms", "state"),
            )
        ]
        made = cls([ids[place] for place in order], *columns)
        return replace(made, epoch_starts=epoch_starts_of_rows(rows.values()))

    @classmethod
    def of_metadata(cls, segments: Iterable[RemoteLogSegmentMetadata]) -> Self:
        return cls.of_rows(
            {segment.segment_id.id.bytes: pack_segment(segment) for segment in segments}
        )

    def __len__(self) -> int:
        return len(self.ids)

    def in_state(self, state: RemoteLogSegmentState) -> BoolArray:
        is_in_it: BoolArray = self.state == state
        return is_in_it


NO_SEGMENTS = RemoteSegments.of_rows({})
