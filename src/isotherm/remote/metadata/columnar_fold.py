"""The fold of metadata records by columns: what cache.py does record by record, for millions.

Records come in runs. Compiled kernels decode a run, find out what becomes of every segment, and
sort that by leader epoch; Python then sees a segment only if it is live at the end of the run or
was at its beginning. A leader epoch in which finished segments overlap is not left to the kernels:
its steps are played, in order, on the very class that the record-by-record fold uses.

Importing this module does not load Numba; the first fold does.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.cache import CacheContents, RemoteLogMetadataCache
from isotherm.remote.metadata.epoch_state import RemoteLogLeaderEpochState
from isotherm.remote.metadata.events import decode_change, partition_of
from isotherm.remote.metadata.fold_tables import FoldTables, load_kernels
from isotherm.remote.metadata.segment_rows import replace_state
from isotherm.remote.metadata.serde import decode_event, encode_event, encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import NO_LEADER_EPOCH, Offset, TopicIdPartition

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

    # Rows of one of the kernels' tables.
    Table: TypeAlias = npt.NDArray[np.void]

# Called with a record's offset and what is wrong with it; what it raises ends the fold.
OnCorrupt = Callable[[Offset, str], None]


class ColumnarFold:
    """Folds the records of one metadata partition. Not thread-safe; of one use."""

    def __init__(self, wanted: Callable[[TopicIdPartition], bool], on_corrupt: OnCorrupt) -> None:
        self._wanted = wanted
        self._on_corrupt = on_corrupt
        self._tables = FoldTables()
        self._partitions: list[TopicIdPartition] = []
        self._contents: list[CacheContents | None] = []
        self._deletions: list[RemotePartitionDeleteMetadata | None] = []

    def results(
        self,
    ) -> Iterator[tuple[RemoteLogMetadataCache, RemotePartitionDeleteMetadata | None]]:
        """A cache for each wanted partition that was met and whose deletion is not finished, with
        the last event of its deletion, if that is under way."""
        for partition, contents, deletion in zip(
            self._partitions, self._contents, self._deletions, strict=True
        ):
            if contents is not None:
                yield RemoteLogMetadataCache(partition, contents), deletion

    def deleted(self) -> list[RemotePartitionDeleteMetadata]:
        """The last event of each wanted partition whose deletion is finished."""
        return [
            deletion
            for contents, deletion in zip(self._contents, self._deletions, strict=True)
            if contents is None and deletion is not None
        ]

    def feed(self, columns: MetadataColumns) -> None:
        """Fold the next run. CorruptMetadataError, or whatever `on_corrupt` raises, for the first
        record that has no meaning where it stands."""
        if len(columns.offset) == 0:
            return
        run = _Run(load_kernels(), columns)
        tables = self._tables
        tables.begin_run(run.events)
        self._add_places(run)
        problems = run.problems + [
            (number, "metadata event contradicts its kind")
            for number in tables.apply_events(run.events, run.value_data).tolist()
        ]
        for number, reason in sorted(problems):
            self._on_corrupt(int(columns.offset[number]), reason)
        tables.plan_steps()
        self._close_places(run)
        self._apply_steps(run.kernels)
        self._keep_rows(run)
        self._keep_keys()

    def _add_places(self, run: _Run) -> None:
        places = self._tables.find_places(run.events)
        for number in range(len(self._partitions), len(places)):
            value = run.value(int(places[number]["event"]))
            partition = partition_of(decode_event(value))
            is_wanted = self._wanted(partition)
            places[number]["is_wanted"] = is_wanted
            self._partitions.append(partition)
            self._contents.append(CacheContents() if is_wanted else None)
            self._deletions.append(None)

    def _close_places(self, run: _Run) -> None:
        places = self._tables.places
        for number in np.flatnonzero(places["deletion"] != run.kernels.UNTOUCHED).tolist():
            event = int(places[number]["deletion"])
            places[number]["deletion"] = run.kernels.UNTOUCHED
            deletion = decode_event(run.value(event)) if event >= 0 else None
            if deletion is None:
                self._deletions[number] = None
                continue
            assert isinstance(deletion, RemotePartitionDeleteMetadata)
            self._deletions[number] = deletion
            if deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._contents[number] = None

    def _apply_steps(self, kernels: ModuleType) -> None:
        groups, steps = self._tables.groups, self._tables.steps
        for number in np.flatnonzero(groups["count"]).tolist():
            group = groups[number]
            contents = self._contents[group["place"]]
            if contents is None:
                continue
            state = contents.epochs.setdefault(int(group["epoch"]), RemoteLogLeaderEpochState())
            mine = steps[group["first"] : group["first"] + group["count"]]
            if group["is_intricate"]:
                self._play(kernels, mine, state)
                highest = state.highest_log_offset
                group["highest"] = -1 if highest is None else highest
                group["tail"] = state.tail
                group["is_intricate"] = state.has_hidden
            else:
                self._append(kernels, mine[mine["is_wanted"] != 0], state)
                if group["highest"] >= 0:
                    state.highest_log_offset = int(group["highest"])

    def _play(self, kernels: ModuleType, steps: Table, state: RemoteLogLeaderEpochState) -> None:
        """Every step in order, as the record-by-record fold takes them."""
        ids = self._tables.segment_ids(steps["slot"])
        columns = (steps[name].tolist() for name in ("action", "start", "end", "leader"))
        for segment, action, start, end, leader in zip(ids, *columns, strict=True):
            if action == kernels.START:
                state.add_unreferenced(segment)
            elif action == kernels.FINISH:
                state.finish(segment, start, end, leader)
            elif action == kernels.START_DELETION:
                state.start_deletion(segment, start)
            else:
                state.forget(segment, start)

    def _append(self, kernels: ModuleType, steps: Table, state: RemoteLogLeaderEpochState) -> None:
        """The last step of each segment, where none gets into another's way."""
        action = steps["action"]
        gone = steps[(action == kernels.FORGET) | (action == kernels.START_DELETION)]
        if len(gone):
            state.withdraw(set(self._tables.segment_ids(gone["slot"])))
        finished = steps[action == kernels.FINISH]
        if len(finished):
            state.append_finished(
                self._tables.segment_ids(finished["slot"]),
                array("q", finished["start"].tobytes()),
                array("q", finished["end"].tobytes()),
                array("i", finished["leader"].astype(np.int32).tobytes()),
            )
        waiting = steps[(action == kernels.START) | (action == kernels.START_DELETION)]
        state.unreferenced.update(self._tables.segment_ids(waiting["slot"]))

    def _keep_rows(self, run: _Run) -> None:
        slots = self._tables.slots
        touched = np.flatnonzero(slots["is_touched"])
        is_live = slots["state"][touched] != run.kernels.GONE
        is_new = slots["base"][touched] >= 0
        fresh = touched[is_live & is_new]
        for contents, ids, rows in self._by_place(
            fresh, self._tables.pack_rows(run.events, run.value_data, fresh)
        ):
            contents.rows.update(zip(ids, rows, strict=True))
        changed = touched[is_live & ~is_new & (slots["update"][touched] >= 0)]
        for contents, ids, updates in self._by_place(changed, slots["update"][changed].tolist()):
            for segment, number in zip(ids, updates, strict=True):
                contents.rows[segment] = run.updated(contents.rows[segment], number)
        dead = touched[~is_live & (slots["was_live"][touched] != 0)]
        for contents, ids, _ in self._by_place(dead, dead.tolist()):
            for segment in ids:
                del contents.rows[segment]

    def _by_place(
        self, slots: Int64Array, values: list[Any]
    ) -> Iterator[tuple[CacheContents, list[bytes], list[Any]]]:
        """Slots and their values by partition; those of closed partitions are left out."""
        places = self._tables.slots["place"][slots]
        order = np.argsort(places, kind="stable")
        ids = self._tables.segment_ids(slots[order])
        ordered = [values[index] for index in order.tolist()]
        borders = np.flatnonzero(np.diff(places[order], prepend=-1, append=-1)).tolist()
        for start, end in itertools.pairwise(borders):
            contents = self._contents[int(places[order[start]])]
            if contents is not None:
                yield contents, ids[start:end], ordered[start:end]

    def _keep_keys(self) -> None:
        keys = self._tables.keys
        touched = keys[keys["is_touched"] != 0]
        ids = self._tables.segment_ids(np.maximum(touched["slot"], 0))
        columns = (touched[name].tolist() for name in ("place", "end", "leader", "slot"))
        for segment, place, end, leader, slot in zip(ids, *columns, strict=True):
            contents = self._contents[place]
            if contents is None:
                continue
            if slot >= 0:
                contents.keys.set(end, leader, segment)
            else:
                contents.keys.discard(end, leader)


class _Run:
    """A run of records, decoded. `problems` are numbers of records that mean nothing, and why."""

    def __init__(self, kernels: ModuleType, columns: MetadataColumns) -> None:
        self.kernels = kernels
        self.problems: list[tuple[int, str]] = []
        self._values = columns.value
        events = np.empty(len(columns.offset), dtype=kernels.EVENT)
        keys, values = _arrays(columns.key), _arrays(columns.value)
        if kernels.decode_events(keys, values, False, events):
            keys, values = self._straighten(columns, np.flatnonzero(events["kind"] == kernels.ODD))
            kernels.decode_events(keys, values, True, events)
            assert np.count_nonzero(events["kind"] == kernels.ODD) == len(self.problems)
        self.events: Table = events
        self.value_data: npt.NDArray[np.uint8] = values[0]

    def value(self, number: int) -> bytes:
        value: bytes = self._values[number].as_py()
        return value

    def updated(self, row: bytes, number: int) -> bytes:
        """A row after the update that is the record of this number."""
        event = self.events[number]
        size, start = int(event["custom_size"]), int(event["custom_start"])
        return replace_state(
            row,
            int(event["state"]),
            self.value_data[start : start + size].tobytes() if size >= 0 else None,
            int(event["broker"]),
            int(event["event_timestamp"]),
        )

    def _straighten(self, columns: MetadataColumns, odd: npt.NDArray[np.intp]) -> tuple[Any, Any]:
        """The columns with odd records in plain form, and null where they mean nothing."""
        keys, values = columns.key.to_pylist(), columns.value.to_pylist()
        for number in odd.tolist():
            try:
                values[number] = _plain_value(keys[number], values[number])
            except CorruptMetadataError as error:
                self.problems.append((number, str(error)))
                keys[number] = values[number] = None
        self._values = pa.array(values, pa.binary())
        return _arrays(pa.array(keys, pa.binary())), _arrays(self._values)


def _plain_value(key: bytes | None, value: bytes | None) -> bytes | None:
    event = decode_change(key, value).event
    if event is None:
        return None
    if key is None and getattr(event, "broker_leader_epoch", NO_LEADER_EPOCH) == NO_LEADER_EPOCH:
        return encode_event(event)
    return encode_keyed_event(event)  # type: ignore[arg-type]


def _arrays(column: pa.BinaryArray) -> tuple[Any, Any, Any]:
    """A column as the kernels take it: bytes, Arrow's offsets into them, which are null."""
    _, ends, data = column.buffers()
    first, count = column.offset, len(column)
    offsets = np.frombuffer(memoryview(ends or b""), np.int32, count=first + count + 1)[first:]
    content = np.frombuffer(memoryview(data or b""), np.uint8)
    arrays = (content, offsets, column.is_null().to_numpy(zero_copy_only=False))
    for each in arrays:
        each.flags.writeable = False
    return arrays
