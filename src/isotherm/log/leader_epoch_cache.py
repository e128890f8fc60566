"""The leader epochs of a partition and their start offsets, kept in `leader-epoch-checkpoint`.

Entries rise in epoch and in start offset. They are an immutable tuple that is replaced, so readers
need no lock. The log that owns the cache serializes changes.

An assigned epoch is on disk after `flush`, which the log calls before it counts records of that
epoch as durable. Until then recovery finds the epoch in the batches. An epoch without records is
not stored; nothing is lost with it. Kafka writes each epoch at once, so that a start with many
partitions waits for the disk. Entries cut off at the start stay in the file until the log start is
durable: a crash may reset the log start, and records without an epoch could neither be copied nor
found in the remote tier. Kafka may lose them. Entries below the log start are harmless. Source:
Kafka LeaderEpochFileCache.java.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from isotherm.errors import CorruptCheckpointError
from isotherm.log.fs import FileSystem, read_if_exists
from isotherm.segment.checkpoint_text import check_not_cut
from isotherm.segment.leader_epoch_checkpoint import (
    EpochEntry,
    encode_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
)
from isotherm.segment.leader_epochs import epoch_for_offset, first_out_of_order, joined
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset


class EpochEndOffset(NamedTuple):
    """(NO_LEADER_EPOCH, UNKNOWN_OFFSET) if the log does not know."""

    epoch: LeaderEpoch
    end_offset: Offset


UNDEFINED_EPOCH_END = EpochEndOffset(NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class LeaderEpochCache:
    def __init__(self, fs: FileSystem, path: Path, *, discard: bool = False) -> None:
        """Reads the checkpoint if there is one. `discard` starts without it. Raises
        CorruptCheckpointError."""
        self._fs = fs
        self._path = path
        self.entries: tuple[EpochEntry, ...] = ()
        # Entries below the log start, which a crash may reset.
        self._cut: tuple[EpochEntry, ...] = ()
        # The content of the file; None if it must be replaced.
        self._stored: tuple[EpochEntry, ...] | None = None
        if not discard:
            self._stored = self.entries = _load(fs, path)
        self._store_lock = threading.Lock()

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Record that `epoch` starts at `start_offset`.

        Entries at the end that contradict it (an epoch or offset that is not lower) are dropped. No
        effect if the epoch is known from the same or a lower offset.
        """
        entries = self.entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return
        kept = len(entries)
        while kept > 0 and (
            self.entries[kept - 1].epoch >= epoch
            or self.entries[kept - 1].start_offset >= start_offset
        ):
            kept -= 1
        self.entries = (*self.entries[:kept], EpochEntry(epoch, start_offset))

    @property
    def earliest(self) -> EpochEntry | None:
        return self.entries[0] if self.entries else None

    @property
    def latest(self) -> EpochEntry | None:
        return self.entries[-1] if self.entries else None

    def epoch_for_offset(self, offset: Offset) -> LeaderEpoch | None:
        """The epoch of the record at `offset`; None below the first entry."""
        entry = epoch_for_offset(self.entries, offset)
        return None if entry is None else entry.epoch

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEndOffset:
        """The highest known epoch up to `epoch`, and the offset where it ends.

        A follower or consumer truncates to that offset. For an epoch below the first entry it is
        the epoch itself with the first start offset. An epoch above the last is undefined.
        """
        entries = self.entries
        if epoch == NO_LEADER_EPOCH or not entries or epoch > entries[-1].epoch:
            return UNDEFINED_EPOCH_END
        if epoch == entries[-1].epoch:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        lower_epoch = entries[higher - 1].epoch if higher else epoch
        return EpochEndOffset(lower_epoch, entries[higher].start_offset)

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Drop the entries that start at `end_offset` or above."""
        count = bisect_left(self.entries, end_offset, key=lambda entry: entry.start_offset)
        below = tuple(entry for entry in self._cut if entry.start_offset < end_offset)
        entries = self.entries[:count]
        if (below, entries) != (self._cut, self.entries):
            # Stored before it takes effect: a crash must not restore epochs that were truncated.
            with self._store_lock:
                self._store(joined(below, entries))
            self._cut, self.entries = below, entries

    def truncate_from_start(self, start_offset: Offset) -> None:
        """Drop the entries that end at or below `start_offset`. One that spans it starts there.

        The file keeps the dropped entries until `forget_below`.
        """
        count = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        if count:
            self._cut = joined(self._cut, self.entries[:count])
            cut = EpochEntry(self.entries[count - 1].epoch, start_offset)
            self.entries = (cut, *self.entries[count:])

    def forget_below(self, durable_start_offset: Offset) -> None:
        """Note that the log start is durable: the next `flush` stores no entries below it."""
        if self.entries and self.entries[0].start_offset <= durable_start_offset:
            self._cut = ()

    def clear(self) -> None:
        self.restore(())

    def restore(self, entries: Iterable[EpochEntry]) -> None:
        """Replace all entries, durably."""
        restored = tuple(entries)
        # Also if the cache has them already: the file may lack the latest until the next flush.
        with self._store_lock:
            self._store(restored)
        self._cut, self.entries = (), restored

    def flush(self, end_offset: Offset | None = None) -> bool:
        """Store the epochs that have records below `end_offset`, or all. Callable from any thread,
        except beside the calls that replace entries in the file.

        True if the file has changed: then the names in its directory are durable too.
        """
        with self._store_lock:
            # In this order, and each once: `truncate_from_start` sets them in the other order, so
            # what it cuts is in one of them, or in both.
            entries, cut = self.entries, self._cut
            if end_offset is not None:
                entries = tuple(entry for entry in entries if entry.start_offset < end_offset)
            if cut:
                entries = tuple(entry for entry in entries if entry.epoch > cut[-1].epoch)
            return self._store((*cut, *entries))

    def _store(self, entries: tuple[EpochEntry, ...]) -> bool:
        """Call it under the store lock, which is taken before the entries are read: then the latest
        ones are stored last."""
        if entries == self._stored:
            return False
        self._fs.write_atomically(self._path, encode_leader_epoch_checkpoint(entries))
        self._stored = entries
        return True


def _load(fs: FileSystem, path: Path) -> tuple[EpochEntry, ...]:
    data = read_if_exists(fs, path)
    if not data:  # Kafka creates a partition with an empty file
        return ()
    check_not_cut(data)
    entries = tuple(read_leader_epoch_checkpoint(data))
    wrong = first_out_of_order(entries)
    if wrong is not None:
        raise CorruptCheckpointError(
            f"leader epochs do not rise epoch={wrong.epoch} start_offset={wrong.start_offset}"
        )
    return entries
