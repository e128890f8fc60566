"""Room for the kernels of the fold: tables that grow between runs, and the calls that fill them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

    Table: TypeAlias = npt.NDArray[np.void]
    TableAndIndex: TypeAlias = tuple[Table, npt.NDArray[np.int32]]

_SEGMENT_ID = np.dtype([("high", ">i8"), ("low", ">i8")])


class FoldTables:
    """The tables of a fold, whose rows isotherm.kernels.metadata_fold defines, and the steps of a run.

    The tables stay between runs; operations and steps are made anew for each run."""

    def __init__(self) -> None:
        from isotherm.kernels import metadata as kernels

        self._kernels = kernels
        self._counts: Int64Array = np.zeros(kernels.COUNTS, dtype=np.int64)
        self._places: TableAndIndex = _empty(kernels.PLACE)
        self._slots: TableAndIndex = _empty(kernels.SLOT)
        self._keys: TableAndIndex = _empty(kernels.KEY)
        self._groups: TableAndIndex = _empty(kernels.GROUP)
        self._ids: npt.NDArray[np.object_] = np.empty(0, dtype=object)
        self._spans: Table = np.zeros(0, dtype=kernels.SPAN)
        self._operations: Table = np.zeros(0, dtype=kernels.OPERATION)
        self.steps: Table = np.zeros(0, dtype=kernels.STEP)

    @property
    def places(self) -> Table:
        return self._places[0][: self._counts[self._kernels.PLACES]]

    @property
    def slots(self) -> Table:
        return self._slots[0][: self._counts[self._kernels.SLOTS]]

    @property
    def keys(self) -> Table:
        return self._keys[0][: self._counts[self._kernels.KEYS]]

    @property
    def groups(self) -> Table:
        return self._groups[0][: self._counts[self._kernels.GROUPS]]

    def restore(self, places: Table, slots: Table, keys: Table) -> None:
        """Start from these rows, without spans."""
        kernels, counts = self._kernels, self._counts
        self._places = places, self._places[1]
        self._slots = slots, self._slots[1]
        self._keys = keys, self._keys[1]
        counts[kernels.PLACES] = len(places)
        counts[kernels.SLOTS] = len(slots)
        counts[kernels.KEYS] = len(keys)

    def begin_run(self, events: Table) -> None:
        """Make room for the rows that `events` can add, and drop rows that no later run needs.

        A kernel cannot grow an array, so every table has room for the worst case before it runs."""
        kernels, counts, count = self._kernels, self._counts, len(events)
        self._places = _grown(self._places, int(counts[kernels.PLACES]) + count)
        kernels.index_places(self._places, counts[kernels.PLACES])
        self._slots = _grown(self._slots, int(counts[kernels.SLOTS]) + count)
        self._keys = _grown(self._keys, int(counts[kernels.KEYS]) + count)
        has_epochs = (events["kind"] == kernels.ADD) | (events["kind"] == kernels.PUT)
        new_spans = int(events["epochs_count"][has_epochs].sum())
        kept = np.empty(int(counts[kernels.SPANS]) + new_spans, dtype=kernels.SPAN)
        moved = np.empty(int(counts[kernels.SLOTS]), dtype=np.int64)
        kernels.begin_run(self._slots, self._spans, kept, self._keys, moved, counts)
        self._spans = kept
        self._operations = np.empty(count * kernels.OPERATIONS_PER_EVENT, dtype=kernels.OPERATION)
        counts[kernels.OPERATIONS] = counts[kernels.BAD] = 0

    def find_places(self, events: Table) -> Table:
        kernels, counts = self._kernels, self._counts
        counts[kernels.PLACES] = kernels.find_places(events, self._places, counts[kernels.PLACES])
        return self.places

    def apply_events(self, events: Table, value_data: npt.NDArray[np.uint8]) -> Int64Array:
        """Apply the events. The numbers of those that contradict their kind, which are not applied."""
        bad: Int64Array = np.empty(len(events), dtype=np.int64)
        self._kernels.apply_events(
            *(events, value_data, self._places, self._slots, self._spans, self._keys),
            *(self._operations, bad, self._counts),
        )
        return bad[: self._counts[self._kernels.BAD]]

    def plan_steps(self) -> None:
        kernels, counts = self._kernels, self._counts
        operations = self._operations[: counts[kernels.OPERATIONS]]
        count = int(operations["spans_count"].sum())
        self._groups = _grown(self._groups, int(counts[kernels.GROUPS]) + count)
        kernels.index_groups(self._groups, counts[kernels.GROUPS])
        self.steps = np.empty(count, dtype=kernels.STEP)
        step_groups = np.empty(count, dtype=np.int64)
        marks = np.zeros(int(counts[kernels.SLOTS]), dtype=np.int64)
        kernels.plan_steps(
            *(operations, self._slots, self._spans, self._groups),
            *(step_groups, self.steps, marks, counts),
        )

    def name_segments(self) -> None:
        """Make the ids of the segments that are live before or after this run, and of those in its
        steps.

        Rows, keys and epochs share one bytes object per segment. A segment that starts and is
        deleted within one run needs none."""
        slots, keys, steps = self.slots, self.keys, self.steps
        is_known = (slots["state"] != self._kernels.GONE) | (slots["was_live"] != 0)
        is_named = is_known & (slots["is_touched"] != 0)
        is_named[steps["slot"][steps["is_wanted"] != 0]] = True
        named_by_key = keys["slot"][keys["is_touched"] != 0]
        is_named[named_by_key[named_by_key >= 0]] = True
        numbers = np.flatnonzero(is_named)
        ids = np.empty(len(numbers), dtype=_SEGMENT_ID)
        ids["high"] = slots["id_high"][numbers]
        ids["low"] = slots["id_low"][numbers]
        size = _SEGMENT_ID.itemsize
        joined = ids.tobytes()
        self._ids = np.empty(len(slots), dtype=object)
        self._ids[numbers] = [joined[at : at + size] for at in range(0, len(joined), size)]

    def segment_ids(self, slots: npt.NDArray[Any]) -> list[bytes]:
        """Ids of slots that `name_segments` named in this run."""
        ids: list[bytes] = self._ids[slots].tolist()
        return ids

    def pack_rows(
        self, events: Table, value_data: npt.NDArray[np.uint8], slots: Int64Array
    ) -> list[bytes]:
        """Rows (segment_rows.py) of segments whose whole state is in an event of this run.

        The first call of the kernel only computes the size, the second one writes."""
        ends: Int64Array = np.empty(len(slots), dtype=np.int64)
        out: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        table = self._slots[0]
        size = self._kernels.pack_rows(events, value_data, table, slots, out, ends)
        out = np.empty(size, dtype=np.uint8)
        self._kernels.pack_rows(events, value_data, table, slots, out, ends)
        packed = out.tobytes()
        borders = [0, *ends.tolist()]
        return [packed[start:end] for start, end in itertools.pairwise(borders)]


def _empty(dtype: np.dtype[Any]) -> TableAndIndex:
    return np.zeros(0, dtype=dtype), np.zeros(1, dtype=np.int32)


def _grown(table_and_index: TableAndIndex, count_max: int) -> TableAndIndex:
    """The table with room for `count_max` rows, and an empty index: the kernels fill it again.

    The index has at least twice as many places as rows, so that probes stay short."""
    table, _ = table_and_index
    if len(table) < count_max:
        grown = np.empty(max(count_max, 2 * len(table)), dtype=table.dtype)
        grown[: len(table)] = table
        table = grown
    size = 1 << (2 * count_max).bit_length()
    return table, np.zeros(size, dtype=np.int32)
