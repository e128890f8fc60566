"""Copies a log's files to another log directory of the same broker: Kafka's future replica.

    <topic>-<partition>.<id>-future/     copied while the log is in use, segment by segment
       closed segments                    once, with their indexes
       active segment                     its batches so far
    ── the log is closed: what is missing is copied, and the directory gets the log's name ──
    <topic>-<partition>/.moved           names the old log directory until nothing is left there

The files of a log change only at their end, unless a truncation or the cleaner drops records. Then
the copy begins anew. The cleaner is paused while the copy is completed. Source: KIP-113, whose copy
is fetched like a follower's. A copy of files also keeps the log's segments, and the state of its
producers and epochs.
"""

from __future__ import annotations

from pathlib import Path

from isotherm.log.checkpoints import save_partition_metadata
from isotherm.log.fs import File, FileSystem, read_if_exists
from isotherm.log.log_dir import LogDir
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.segment.file_names import (
    LOG_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from isotherm.types import Offset

CHUNK_SIZE = 1024 * 1024

MOVED_MARK = ".moved"
"""A file in the directory of a log that has been moved: the paths of the log directories that may
still have the log as it was before, one a line. A log directory that fails at that moment may
return much later. A start that finds the log there too uses the one with the mark."""


def log_dirs_left_behind(fs: FileSystem, directory: Path) -> frozenset[Path]:
    """The log directories that the mark names; none without a mark. Raises OSError."""
    data = read_if_exists(fs, directory / MOVED_MARK)
    return frozenset(map(Path, (data or b"").decode().splitlines()))


def _mark(fs: FileSystem, directory: Path, log_dirs: frozenset[Path]) -> None:
    """Name `log_dirs` in the mark, durably. Raises OSError."""
    mark = directory / MOVED_MARK
    if log_dirs:
        fs.write_atomically(mark, "\n".join(sorted(map(str, log_dirs))).encode())
    else:
        fs.remove(mark)
        fs.sync_directory(directory)


class LogCopy:
    """The copy of one log, for one thread at a time.

    Methods raise LogDirFailedError if a disk fails (`log_dir` or that of the log is then offline),
    and NotLeaderOrFollowerError if the log is closed.
    """

    def __init__(self, fs: FileSystem, log: PartitionLog, log_dir: LogDir, directory: Path) -> None:
        """Create `directory`, which lies in `log_dir`."""
        assert log.topic_id is not None, log
        with log.log_dir.errors_fail_it(f"move {log.topic_partition}"):
            named = log_dirs_left_behind(fs, log.directory)
            # A directory must not name the one that is about to replace it.
            self._left_behind = named - {log_dir.path}
            if self._left_behind != named:
                _mark(fs, log.directory, self._left_behind)
        self.log = log
        self.log_dir = log_dir
        self.directory = directory
        self._fs = fs
        # Read before the first byte is copied: a truncation after this makes the copy begin anew.
        self._removals = log.removals
        # Bytes of each segment's `.log` that are copied, and the bases of segments copied as a
        # whole.
        self._sizes: dict[Offset, int] = {}
        self._whole: set[Offset] = set()
        self._end_offset = log.local_log_start_offset
        with log_dir.errors_fail_it(f"create {directory.name}"):
            fs.make_directory(directory)
            save_partition_metadata(fs, directory, log.topic_id)
            fs.sync_directory(log_dir.path)

    @property
    def size_in_bytes(self) -> int:
        return sum(tuple(self._sizes.values()))

    @property
    def end_offset(self) -> Offset:
        """All records below it are copied."""
        return self._end_offset

    @property
    def missing_size(self) -> int:
        """Bytes of batches that are not copied; below 0 if the log has deleted some that are."""
        return self.log.size_in_bytes - self.size_in_bytes

    def copy_some(self, size_max: int) -> int:
        """Copy up to `size_max` bytes of batches, from the first segment that is not fully copied;
        returns the number of bytes. 0 if everything is copied at the moment."""
        self._begin_anew_if_needed()
        view = self.log.view()
        self._forget_segments_but({segment.base_offset for segment in view.segments})
        for index, segment in enumerate(view.segments):
            base_offset = segment.base_offset
            if base_offset in self._whole:
                continue
            missing = view.segment_size(index) - self._sizes.get(base_offset, 0)
            if missing > 0:
                return self._copy_batches(segment, min(missing, size_max))
            self._end_offset = view.segment_end_offset(index)
            if segment is not view.segments[-1]:
                self._copy_closed(segment)
        return 0

    def complete(self) -> None:
        """Copy everything that is missing, from a log that is closed. Durable on return."""
        self._begin_anew_if_needed()
        with self.log.log_dir.errors_fail_it(f"list {self.log.topic_partition}"):
            names = [name for name in self._fs.list_names(self.log.directory) if _is_kept(name)]
        self._forget_segments_but(
            {
                parsed.base_offset
                for name in names
                if (parsed := parse_segment_file_name(name)) is not None
                and parsed.suffix == LOG_SUFFIX
            }
        )
        for name in names:
            parsed = parse_segment_file_name(name)
            if parsed is None or parsed.base_offset not in self._whole:
                self._copy_file(name)
        with self.log_dir.errors_fail_it(f"sync {self.directory.name}"):
            # Copies of files that the log has deleted since.
            for name in set(self._fs.list_names(self.directory)).difference(names):
                self._fs.remove(self.directory / name)
            self._fs.sync_directory(self.directory)

    def rename_to(self, directory: Path) -> None:
        """Mark the complete copy and give it the log's name. The rename is the last step: from
        there on a start uses the copy, and so must this process."""
        with self.log_dir.errors_fail_it(f"move {self.log.topic_partition}"):
            # Durable before the rename: after a crash a start that finds both directories must
            # find it.
            _mark(self._fs, self.directory, self._left_behind | {self.log.log_dir.path})
            self._fs.rename(self.directory, directory)

    def unmark(self, directory: Path) -> None:
        """Drop the old directory, which is gone, from the mark of the renamed copy."""
        with self.log_dir.errors_fail_it(f"unmark {self.log.topic_partition}"):
            _mark(self._fs, directory, self._left_behind)

    # ---- inside

    def _begin_anew_if_needed(self) -> None:
        removals = self.log.removals
        if removals == self._removals:
            return
        self._removals = removals
        self._forget_segments_but(set())
        self._end_offset = self.log.local_log_start_offset

    def _forget_segments_but(self, kept: set[Offset]) -> None:
        """Remove the copies of all other segments: retention has deleted these."""
        gone = self._sizes.keys() - kept
        if not gone:
            return
        with self.log_dir.errors_fail_it(f"remove from {self.directory.name}"):
            for name in self._fs.list_names(self.directory):
                parsed = parse_segment_file_name(name)
                if parsed is not None and parsed.base_offset in gone:
                    self._fs.remove(self.directory / name)
        for base_offset in gone:
            del self._sizes[base_offset]
        self._whole &= kept

    def _copy_batches(self, segment: LogSegment, size: int) -> int:
        """Copy up to `size` bytes; returns the number, 0 if the segment was deleted meanwhile."""
        copied = self._sizes.get(segment.base_offset, 0)
        source = self._open_source(segment.log_path.name)
        if source is None:
            return 0
        with self.log.log_dir.errors_fail_it(f"copy {self.log.topic_partition}"):
            data = source.read_at(copied, min(size, CHUNK_SIZE))
            source.close()
        with self.log_dir.errors_fail_it(f"copy to {self.directory.name}"):
            target = self._fs.open_writable(self.directory / segment.log_path.name)
            target.write_at(copied, data)
            target.close()
        self._sizes[segment.base_offset] = copied + len(data)
        return len(data)

    def _copy_closed(self, segment: LogSegment) -> None:
        """Copy the other files of a closed segment whose batches are copied."""
        prefix = segment_file_name(segment.base_offset, "")
        with self.log.log_dir.errors_fail_it(f"list {self.log.topic_partition}"):
            names = [
                name
                for name in self._fs.list_names(self.log.directory)
                if name.startswith(prefix) and _is_kept(name)
            ]
        if segment.log_path.name not in names:
            return  # deleted meanwhile
        for name in names:
            self._copy_file(name)
        self._whole.add(segment.base_offset)

    def _copy_file(self, name: str) -> None:
        """Copy the rest of a `.log`, or all of another file. Durable except for its name."""
        source = self._open_source(name)
        if source is None:
            return
        parsed = parse_segment_file_name(name)
        base_offset = parsed.base_offset if parsed and parsed.suffix == LOG_SUFFIX else None
        position = 0 if base_offset is None else self._sizes.get(base_offset, 0)
        with self.log.log_dir.errors_fail_it(f"copy {self.log.topic_partition}"):
            size = source.size()
            modified_ms = self._fs.modified_ms(self.log.directory / name)
        with self.log_dir.errors_fail_it(f"copy to {self.directory.name}"):
            target = self._fs.open_writable(self.directory / name)
        while position < size:
            with self.log.log_dir.errors_fail_it(f"copy {self.log.topic_partition}"):
                data = source.read_at(position, min(CHUNK_SIZE, size - position))
            with self.log_dir.errors_fail_it(f"copy to {self.directory.name}"):
                target.write_at(position, data)
            position += len(data)
        source.close()
        with self.log_dir.errors_fail_it(f"copy to {self.directory.name}"):
            target.truncate(size)
            target.sync()
            target.close()
            # Retention uses it for a segment without timestamps.
            self._fs.set_modified_ms(self.directory / name, modified_ms)
        if base_offset is not None:
            self._sizes[base_offset] = size

    def _open_source(self, name: str) -> File | None:
        """Open a file of the log; None if retention has deleted it."""
        with self.log.log_dir.errors_fail_it(f"copy {self.log.topic_partition}"):
            try:
                return self._fs.open_readable(self.log.directory / name)
            except FileNotFoundError:
                return None


def _is_kept(name: str) -> bool:
    """Whether a file of the old directory belongs to the log."""
    parsed = parse_segment_file_name(name)
    return name != MOVED_MARK if parsed is None else not parsed.temporary_suffix
