"""The fold of metadata records by columns: the result of cache.py, for millions of records.

Records come in runs. Compiled kernels decode a run, compute what becomes of every segment, and sort
the changes by leader epoch. Python handles a segment only if it is live at the end of the run or was
live at its beginning. If finished segments of a leader epoch overlap, the order of events decides
which one answers. So the steps of that epoch are applied in order to the class of the
record-by-record fold.

Importing this module does not load Numba and Arrow; the first fold does.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.folding.fold_tables import FoldTables
from isotherm.remote.metadata.state.cache import CacheContents, RemoteLogMetadataCache
from isotherm.remote.metadata.state.epoch_state import RemoteLogLeaderEpochState
from isotherm.remote.metadata.state.segment_rows import replace_state
from isotherm.remote.metadata.wire.events import decode_change
from isotherm.remote.metadata.wire.serde import (
    decode_event,
    decode_partition,
    encode_event,
    encode_keyed_event,
)
from isotherm.remote.segment_metadata import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import NO_LEADER_EPOCH, Offset, TopicIdPartition

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

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
        """A cache for each wanted partition in the records, without those whose deletion is
        finished, and the last event of its deletion, if that is under way."""
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
        """Fold the next run. Raises what `on_corrupt` raises for the first record that cannot be
        decoded or applied."""
        if len(columns.offset) == 0:
            return
        run = FoldRun(columns)
        tables = self._tables
        tables.begin_run(run.events)
        self._add_places(run)
        problems = run.problems + [
            (number, "metadata event contradicts its kind")
            for number in tables.apply_events(run.events, run.value_data).tolist()
        ]
        for number, reason in sorted(problems):
            self._on_corrupt(int(columns.offset[number]), reason)
        self._plan_look_ups()
        tables.name_segments()
        self._close_places(run)
        self._keep_look_ups(run.kernels)
        self._keep_rows(run)
        self._keep_keys()

    def _add_places(self, run: FoldRun) -> None:
        places = self._tables.find_places(run.events)
        for number in range(len(self._partitions), len(places)):
            partition = decode_partition(run.value(int(places[number]["event"])))
            is_wanted = self._wanted(partition)
            places[number]["is_wanted"] = is_wanted
            self._partitions.append(partition)
            self._contents.append(CacheContents() if is_wanted else None)
            self._deletions.append(None)

    def _close_places(self, run: FoldRun) -> None:
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

    def _plan_look_ups(self) -> None:
        """Plan the steps before `name_segments`, which names the segments of the steps too."""
        self._tables.plan_steps()

    def _keep_look_ups(self, kernels: ModuleType) -> None:
        """Update per leader epoch the segments that look-ups find."""
        groups, steps = self._tables.groups, self._tables.steps
        wanted = np.flatnonzero(steps["is_wanted"])
        taken = _Steps(steps[wanted], self._tables.segment_ids(steps["slot"][wanted]))
        numbers = np.flatnonzero(groups["count"])
        chosen = groups[numbers]
        firsts = np.searchsorted(wanted, chosen["first"]).tolist()
        ends = np.searchsorted(wanted, chosen["first"] + chosen["count"]).tolist()
        columns = (chosen[name].tolist() for name in ("place", "epoch", "highest", "is_intricate"))
        for number, first, end, place, epoch, highest, is_intricate in zip(
            numbers.tolist(), firsts, ends, *columns, strict=True
        ):
            contents = self._contents[place]
            if contents is None:
                continue
            state = contents.epochs.get(epoch)
            if state is None:
                state = contents.epochs[epoch] = RemoteLogLeaderEpochState()
            if is_intricate:
                # Overlapping segments: tell the kernels afterwards what the epoch looks like, so
                # that they know in the next run whether it still has overlaps.
                taken.play(kernels, state, first, end)
                known = state.highest_log_offset
                groups[number]["highest"] = -1 if known is None else known
                groups[number]["tail"] = state.tail
                groups[number]["is_intricate"] = state.has_hidden
            else:
                taken.append_to(kernels, state, first, end)
                if highest >= 0:
                    state.highest_log_offset = highest

    def _keep_rows(self, run: FoldRun) -> None:
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
        """Slots and their values by partition, without partitions that are deleted or not wanted."""
        places = self._tables.slots["place"][slots]
        order = np.argsort(places, kind="stable")
        ids = self._tables.segment_ids(slots[order])
        ordered = [values[index] for index in order.tolist()]
        for start, end in itertools.pairwise(_borders(places[order])):
            contents = self._contents[int(places[order[start]])]
            if contents is not None:
                yield contents, ids[start:end], ordered[start:end]

    def _keep_keys(self) -> None:
        keys = self._tables.keys
        touched = keys[keys["is_touched"] != 0]
        buried = touched[touched["slot"] < 0]
        columns = (buried[name].tolist() for name in ("place", "end", "leader"))
        for place, end_offset, leader in zip(*columns, strict=True):
            contents = self._contents[place]
            if contents is not None:
                contents.keys.discard(end_offset, leader)
        kept = touched[touched["slot"] >= 0]
        kept = kept[np.argsort(kept["place"], kind="stable")]
        places = kept["place"]
        end_offsets, leaders = kept["end"].tolist(), kept["leader"].tolist()
        ids = self._tables.segment_ids(kept["slot"])
        for first, end in itertools.pairwise(_borders(places)):
            contents = self._contents[int(places[first])]
            if contents is not None:
                contents.keys.set_all(end_offsets[first:end], leaders[first:end], ids[first:end])


class _Steps:
    """Steps of a run that have an effect, as columns of plain values, in order of their groups."""

    def __init__(self, steps: Table, segment_ids: list[bytes]) -> None:
        self._ids = segment_ids
        self._actions = steps["action"].astype(np.uint8).tobytes()
        self._starts = array("q", steps["start"].tobytes())
        self._ends = array("q", steps["end"].tobytes())
        self._leaders = array("i", steps["leader"].astype(np.int32).tobytes())

    def play(
        self, kernels: ModuleType, state: RemoteLogLeaderEpochState, first: int, end: int
    ) -> None:
        """Apply every step in order, as the record-by-record fold does."""
        for index in range(first, end):
            segment, action = self._ids[index], self._actions[index]
            if action == kernels.START:
                state.add_unreferenced(segment)
            elif action == kernels.FINISH:
                state.finish(segment, self._starts[index], self._ends[index], self._leaders[index])
            elif action == kernels.START_DELETION:
                state.start_deletion(segment, self._starts[index])
            else:
                state.forget(segment, self._starts[index])

    def append_to(
        self, kernels: ModuleType, state: RemoteLogLeaderEpochState, first: int, end: int
    ) -> None:
        """Apply the last step of each segment, in an epoch without overlaps.

        Their order does not matter then, so equal steps are applied together."""
        finished: Sequence[int] = range(first, end)
        if self._actions.count(kernels.FINISH, first, end) != end - first:
            by_action: dict[int, list[int]] = {}
            for index in finished:
                by_action.setdefault(self._actions[index], []).append(index)
            finished = by_action.get(kernels.FINISH, [])
            started = by_action.get(kernels.START, [])
            deleting = by_action.get(kernels.START_DELETION, [])
            forgotten = by_action.get(kernels.FORGET, [])
            if deleting or forgotten:
                state.withdraw({self._ids[index] for index in (*deleting, *forgotten)})
            state.unreferenced.update(self._ids[index] for index in (*started, *deleting))
            state.append_finished(
                [self._ids[index] for index in finished],
                array("q", [self._starts[index] for index in finished]),
                array("q", [self._ends[index] for index in finished]),
                array("i", [self._leaders[index] for index in finished]),
            )
        else:
            state.append_finished(
                self._ids[first:end],
                self._starts[first:end],
                self._ends[first:end],
                self._leaders[first:end],
            )


class FoldRun:
    """A run of records, decoded. `problems`: numbers of records that cannot be decoded, and why.

    The kernels decode the form that brokers write. Records in another form (ODD) are decoded in
    Python and encoded in the plain form. Without `straighten` they stay ODD, valid or not.
    """

    def __init__(self, columns: MetadataColumns, *, straighten: bool = True) -> None:
        from isotherm.kernels import metadata as kernels

        self.kernels = kernels
        self.problems: list[tuple[int, str]] = []
        self.offset = columns.offset
        self._values = columns.value
        events = np.empty(len(columns.offset), dtype=kernels.EVENT)
        keys, values = _arrays(columns.key), _arrays(columns.value)
        if kernels.decode_events(keys, values, False, events) and straighten:
            keys, values = self._straighten(columns, np.flatnonzero(events["kind"] == kernels.ODD))
            kernels.decode_events(keys, values, True, events)
            assert np.count_nonzero(events["kind"] == kernels.ODD) == len(self.problems)
        self.events: Table = events
        self.value_data: npt.NDArray[np.uint8] = values[0]

    def value(self, number: int) -> bytes:
        value: bytes = self._values[number].as_py()
        return value

    def updated(self, row: bytes, number: int) -> bytes:
        """The row after the update in record `number`."""
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
        """The columns with odd records in plain form, and null for those that cannot be decoded."""
        import pyarrow as pa

        keys, values = columns.key.to_pylist(), columns.value.to_pylist()
        for number in odd.tolist():
            try:
                values[number] = _plain_value(keys[number], values[number])
            except CorruptMetadataError as error:
                self.problems.append((number, str(error)))
                keys[number] = values[number] = None
        self._values = pa.array(values, pa.binary())
        return _arrays(pa.array(keys, pa.binary())), _arrays(self._values)


def place_hashes(columns: MetadataColumns) -> Int64Array:
    """Per record a hash of its user partition; 0 for a record that cannot be decoded."""
    run = FoldRun(columns)
    events = run.events
    hashes: Int64Array = events["topic_high"] * 31 + events["topic_low"] * 17 + events["partition"]
    hashes[events["kind"] >= run.kernels.ODD] = 0
    return hashes


def _borders(places: Int64Array) -> list[int]:
    """Indexes where a new place begins in sorted `places`, and the end."""
    return np.flatnonzero(np.diff(places, prepend=-1, append=-1)).tolist()


def _plain_value(key: bytes | None, value: bytes | None) -> bytes | None:
    event = decode_change(key, value).event
    if event is None:
        return None
    if key is None and getattr(event, "broker_leader_epoch", NO_LEADER_EPOCH) == NO_LEADER_EPOCH:
        return encode_event(event)
    return encode_keyed_event(event)  # type: ignore[arg-type]


def _arrays(column: pa.BinaryArray) -> tuple[Any, Any, Any]:
    """A column for the kernels: its bytes, Arrow's offsets into them, and which values are null."""
    _, ends, data = column.buffers()
    first, count = column.offset, len(column)
    offsets = np.frombuffer(memoryview(ends or b""), np.int32, count=first + count + 1)[first:]
    content = np.frombuffer(memoryview(data or b""), np.uint8)
    arrays = (content, offsets, column.is_null().to_numpy(zero_copy_only=False))
    for each in arrays:
        each.flags.writeable = False
    return arrays
