"""Erases random records of a topic in place while clients work and the broker is killed.

The worker is the job of `isotherm pipeline erase` without Spark, whose session would cost more than
the round: it plans, writes, stages and journals by the job's own functions, and chooses the records
itself. The broker publishes the run and drops its local copies.
"""

from __future__ import annotations

import random
import re
import tempfile
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from isotherm.errors import IsothermError
from isotherm.record.batch import iterate_batches, read_records
from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules, erase_piece
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.rewriting.journal import JournalState, RewriteJournal, RunKind
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.run_recovery import undo_run
from isotherm.remote.rewriting.staging import stage_segment
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.rewrite_plan import marked_pieces, with_last_records
from isotherm.spark.jobs.rewrite_run import check_not_undone
from isotherm.spark.jobs.rewrite_tasks import open_journals, open_storage
from isotherm.spark.plan.planning import lineage_pieces
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.testing.bucket_files import files_below
from isotherm.types import Offset, TopicIdPartition, TopicPartition, uuid_to_text
from tests.support.correctness.checker import Anomaly
from tests.support.correctness.history import Value
from tests.support.correctness.settled_tier import read_live_segments
from tests.support.correctness.workload import FORGETTING, Workload, decode_value

SELECTED_SHARE_MAX = 0.3
PAUSE_S = 0.3
FETCH_BYTES = 1 << 20

# A value is its number, again and again (`encode_value`).
_VALUE = re.compile(rb"(?<!\d)(\d+) \1 \1 \1 ")


@dataclass(slots=True)
class Erased:
    """The records that runs have erased, of one topic. Only the eraser writes to it."""

    places: dict[TopicPartition, dict[Offset, Value]] = field(default_factory=dict)
    runs: int = 0
    failed: int = 0
    """Runs that ended before they were staged: the broker was away, or a segment was deleted."""

    @property
    def values(self) -> set[Value]:
        return {value for values in self.places.values() for value in values.values()}

    def add(self, partition: TopicPartition, records: Mapping[Offset, Value]) -> None:
        self.places.setdefault(partition, {}).update(records)


class Eraser:
    """Erases records of FORGETTING. One thread at a time."""

    def __init__(
        self, workload: Workload, settings: ObjectStoreSettings, rng: random.Random, folder: Path
    ) -> None:
        """`settings` are those of the broker's bucket; `folder` is for the files of new segments,
        outside of what is searched."""
        self.erased = Erased()
        self._workload = workload
        self._settings = settings
        self._rng = rng
        self._folder = folder

    def run(self) -> None:
        """Erase until the round ends. A failed run is undone, and another one takes its place."""
        while not self._workload.clock.wait(self._workload.stopping, PAUSE_S):
            try:
                self.erase_once()
            except IsothermError:
                self.erased.failed += 1

    def erase_once_more(self, timeout_s: float) -> None:
        """Stage a run with the broker at peace. One that meets the end of the last run, whose old
        objects go at once, is repeated."""
        clock, before = self._workload.clock, self.erased.runs
        deadline_s = clock.monotonic_s() + timeout_s
        while self.erased.runs == before:
            try:
                self.erase_once()
            except IsothermError:
                self.erased.failed += 1
                if clock.monotonic_s() > deadline_s:
                    raise
            clock.wait(threading.Event(), PAUSE_S)

    def erase_once(self) -> None:
        """Stage one run on each partition that has segments in the bucket, and no unfinished run.
        Raises the errors of the bucket and of the metadata topic; then nothing of the run that
        failed is left."""
        for partition, segments in self._histories().items():
            journals = open_journals(self._settings)
            if any(run.partition == partition for run in journals.find()):
                continue  # the broker has not ended the last one
            run = uuid.uuid4().hex[:16]
            try:
                records = self._stage(run, partition, segments)
            except IsothermError:
                for found in journals.find():
                    if found.run == run:
                        undo_run(open_storage(self._settings), journals, found)
                raise
            if records:
                self.erased.add(partition.topic_partition, records)
                self.erased.runs += 1

    def unfinished_uploads(self) -> frozenset[uuid.UUID]:
        """The segments whose copies a broker began, and no broker will end. A certificate names
        them (`unreadSegments`), since they may hold erased records: only the broker that began one
        deletes it, when it leads again, or `isotherm pipeline sweep` does."""
        return frozenset(
            segment.segment_id.id
            for segment in self._segments()
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        )

    def _segments(self) -> Collection[RemoteLogSegmentMetadata]:
        servers = self._workload.bootstrap_servers
        topic = KafkaMetadataTopic({"bootstrap.servers": servers, "log_level": 0})
        try:
            return read_live_segments(topic).values()
        finally:
            topic.close()

    def _histories(self) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
        histories: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
        for segment in self._segments():
            is_finished = segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            if is_finished and segment.topic_id_partition.topic == FORGETTING:
                histories.setdefault(segment.topic_id_partition, []).append(segment)
        return histories

    def _stage(
        self, run: str, partition: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> dict[Offset, Value]:
        """Stage a run, and return what it erases."""
        storage, journals = open_storage(self._settings), open_journals(self._settings)
        found = {partition.topic_partition: lineage_pieces(segments)}
        marked = marked_pieces(CommittedHistory(storage, found), found)
        pieces = with_last_records(storage, marked[partition.topic_partition])
        share = self._rng.uniform(0, SELECTED_SHARE_MAX)
        now_ms = self._workload.clock.now_ms()
        journal = RewriteJournal(
            kind=RunKind.ERASURE,
            run=run,
            partition=partition,
            state=JournalState.STAGING,
            time_ms=now_ms,
            in_place=True,
        )
        rules = ErasureRules(now_ms=now_ms, action=EraseAction.DROP, fetch_bytes=FETCH_BYTES)
        journals.put(journal)
        replacements = []
        erased: dict[Offset, Value] = {}
        for piece in pieces:
            log = bytes(storage.fetch_log_segment(piece.segment, 0))
            chosen = {
                offset: value
                for offset, value in records_in(log)
                if self._rng.random() < share and piece.start_offset <= offset < piece.end_offset
            }
            # A part of a segment cannot be replaced: the job tells it as unreachable.
            if not chosen or not piece.is_whole_segment:
                continue
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                rewritten = erase_piece(
                    storage,
                    piece,
                    _relative(piece, chosen),
                    rules,
                    RemoteLogSegmentId(partition, uuid.uuid4()),
                    Path(folder),
                )
                replacements.append(
                    stage_segment(storage, journals, run, piece.segment, rewritten, FETCH_BYTES)
                )
            erased |= chosen
        check_not_undone(
            journals, run, [replacement.new.segment_id for replacement in replacements]
        )
        journals.put(replace(journal, state=JournalState.STAGED, replacements=tuple(replacements)))
        return erased


def _relative(piece: Piece, chosen: Iterable[Offset]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sorted(chosen), dtype=np.int64) - piece.start_offset


def records_in(log: bytes) -> Iterator[tuple[Offset, Value]]:
    """The data records of a `.log`, those of open and of aborted transactions included."""
    for position, header in iterate_batches(log):
        if not header.is_control:
            for record in read_records(log, position, header):
                yield record.offset, decode_value(record.value)


def unerased(
    erased: Erased, folders: Iterable[Path], unfinished: Collection[uuid.UUID] = ()
) -> list[Anomaly]:
    """The erased values that any file below the folders still holds: as raw bytes, and in files of
    batches decompressed. No other topic has values of this one. Files of `unfinished` uploads may
    hold some."""
    values = erased.values
    names = {uuid_to_text(segment) for segment in unfinished}
    found = []
    for path in sorted(path for folder in folders for path in files_below(folder)):
        if any(name in path.name for name in names):
            continue
        content = path.read_bytes()
        held = {int(number) for number in _VALUE.findall(content)}
        if ".log" in path.name:
            held.update(value for _, value in records_in(content))
        found += [Anomaly("unerased", f"value={value} file={path}") for value in held & values]
    return found
