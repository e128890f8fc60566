"""Erasure in place: staged by a job, published by the broker, with a crash at any durable change.

A random log and a random selection: every record that was not selected is still there, and every
one that was is nowhere in the bucket and the log directory.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isotherm.metrics.registry import Metrics
from isotherm.record.batch import CompressionType, build_batch, iterate_batches, read_records
from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules, erase_piece
from isotherm.remote.rewriting.finisher import RewriteFinisher, TierReplacementTarget
from isotherm.remote.rewriting.journal import (
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
    SegmentReplacement,
)
from isotherm.remote.rewriting.local_copies import LocalCopies
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.run_recovery import undo_run
from isotherm.remote.rewriting.staging import stage_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import BrokerId, Offset
from tests.support.mortal_store import Countdown, CutOffError, MortalClient
from tests.support.tiered_partition import BROKER_ID, TieredPartition

KEEP_OLD_MS = 5000
FETCH_BYTES = 1000


class Story:
    """One partition at level 1. Its closed segments are in both tiers, and a job erases some of
    their records. `replicas` are the brokers that must drop their local copies."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.countdown = Countdown()
        self.leads = True
        self.replicas: frozenset[BrokerId] = frozenset({BROKER_ID})
        settings = ObjectStoreSettings(url=(directory / "bucket").as_uri())
        store = open_object_store(settings, create_folder=True)
        self.storage = ObjectStoreRemoteStorageManager(settings, store=store)
        client = MortalClient(settings, store)
        client.countdown = self.countdown
        self.storage._client = client
        self.journals = RewriteJournals(client, self.storage.root_directory)
        self.partition = TieredPartition(directory, metadata_level=1, storage=self.storage)
        for topic in (self.partition.metadata_topic, self.partition.audit_topic):
            self._count_appends(topic)
        self.values: dict[Offset, bytes] = {}
        for _ in range(self.rng.randint(6, 12)):
            self._append()
            if self.rng.random() < 0.4:
                self.partition.log.roll()
        self.partition.log.roll()
        self.end = self.partition.log.log_end_offset
        self.partition.copy_task.run()
        self._append()  # the tail, which is on the broker only
        self.before = self.partition.segments()
        tiered = [offset for offset in self.values if offset < self.end]
        self.selected = set(self.rng.sample(tiered, self.rng.randint(1, len(tiered))))
        self._ids = itertools.count(1000)

    def _append(self) -> None:
        values = [b"<%032x>" % self.rng.getrandbits(128) for _ in range(self.rng.randint(1, 3))]
        batch = build_batch(
            [(self.partition.clock.now_ms(), b"k", value, ()) for value in values],
            compression=self.rng.choice(list(CompressionType)),
        )
        first = self.partition.append_batch(batch)
        self.values |= dict(enumerate(values, first))

    def _count_appends(self, topic: object) -> None:
        append = topic.append  # type: ignore[attr-defined]

        def counted(*arguments: object) -> int:
            self.countdown.step()
            offset: int = append(*arguments)
            return offset

        topic.append = counted  # type: ignore[attr-defined]

    def stage(self, run: str, kind: RunKind = RunKind.ERASURE) -> None:
        journal = RewriteJournal(
            kind=kind,
            run=run,
            partition=self.partition.partition,
            state=JournalState.STAGING,
            time_ms=self.partition.clock.now_ms(),
            in_place=True,
            keep_old_ms=KEEP_OLD_MS,
        )
        self.journals.put(journal)
        staged = [self._stage(run, segment) for segment in self.partition.segments()]
        replacements = tuple(each for each in staged if each is not None)
        self.journals.put(replace(journal, state=JournalState.STAGED, replacements=replacements))

    def _stage(self, run: str, segment: RemoteLogSegmentMetadata) -> SegmentReplacement | None:
        number = next(self._ids)
        folder = self.directory.parent / f"{self.directory.name}-job" / str(number)
        folder.mkdir(parents=True)
        piece = Piece(0, segment, segment.start_offset, segment.end_offset_inclusive + 1)
        offsets = sorted(
            offset for offset in self.selected if piece.start_offset <= offset < piece.end_offset
        )
        rewritten = erase_piece(
            self.storage,
            piece,
            np.array(offsets, dtype=np.int64) - piece.start_offset,
            ErasureRules(now_ms=self.partition.clock.now_ms(), action=EraseAction.DROP),
            RemoteLogSegmentId(self.partition.partition, uuid.UUID(int=number)),
            folder,
        )
        if not rewritten.is_changed:
            return None
        return stage_segment(self.storage, self.journals, run, segment, rewritten, FETCH_BYTES)

    def look(self) -> None:
        """Let the broker do what is due."""
        self.finisher().run()

    def finisher(self) -> RewriteFinisher:
        partition = self.partition
        local = LocalCopies(
            BROKER_ID,
            lambda _: partition.log,
            lambda _: self.replicas,
            partition.read_ahead.forget,
            partition.clock,
        )
        return RewriteFinisher(
            self.journals,
            self.storage,
            TierReplacementTarget(partition.tier, partition.metadata, lambda _: self.leads, local),
            abandoned_after_ms=10**12,
            is_alone=True,
            clock=partition.clock,
            metrics=Metrics(),
        )

    def finish(self) -> None:
        self.look()
        self.partition.clock.advance(KEEP_OLD_MS)
        self.look()
        self.look()

    def remote_values(self) -> dict[Offset, bytes]:
        """The records of the live segments."""
        values: dict[Offset, bytes] = {}
        for segment in self.partition.segments():
            for offset, value in values_in(bytes(self.storage.fetch_log_segment(segment, 0))):
                assert offset not in values
                values[offset] = value
        return values

    def local_values(self) -> dict[Offset, bytes]:
        return {
            offset: value
            for segment in self.partition.log.segments()
            for offset, value in values_in(segment.log_path.read_bytes())
        }

    def check_nothing_is_lost(self) -> None:
        kept = {o: v for o, v in self.values.items() if o not in self.selected}
        both = self.local_values() | self.remote_values()
        assert kept.items() <= both.items() <= self.values.items()

    def check_done(self) -> None:
        assert self.remote_values() == {
            offset: value
            for offset, value in self.values.items()
            if offset < self.end and offset not in self.selected
        }
        self.check_nothing_is_lost()
        everywhere = dict(self.all_values())
        assert not self.selected & everywhere.keys()
        # The tail is not selected, and stays on the broker.
        assert everywhere.keys() >= {each for each in self.values if each >= self.end}
        assert self.journals.find() == []
        assert not [name for name in self.partition.object_names() if "rewrites" in name]

    def all_values(self) -> Iterator[tuple[Offset, bytes]]:
        """The records in any file with batches below the folder, whatever its name."""
        for path in self.directory.rglob("*"):
            if path.is_file() and ".log" in path.name:
                yield from values_in(path.read_bytes())


def values_in(data: bytes) -> Iterator[tuple[Offset, bytes]]:
    for position, header in iterate_batches(data):
        for record in read_records(data, position, header):
            assert record.value is not None
            yield record.offset, record.value


def test_local_copies_go_once_the_new_segments_answer(tmp_path: Path) -> None:
    story = Story(tmp_path / "story", 1)
    story.stage("one")
    assert story.local_values() == story.values
    story.look()
    changed = max(
        segment.end_offset_inclusive
        for segment in story.before
        if segment not in story.partition.segments()
    )
    assert story.partition.log.local_log_start_offset == changed + 1
    # The old objects stay for readers.
    assert story.selected <= dict(story.all_values()).keys()
    story.finish()
    story.check_done()


def test_journal_waits_for_each_replica(tmp_path: Path) -> None:
    story = Story(tmp_path / "story", 2)
    story.replicas = frozenset({BROKER_ID, 7})
    story.stage("one")
    story.finish()
    (found,) = story.journals.find()
    assert found.dropped_by == {BROKER_ID}
    assert not story.selected & dict(story.all_values()).keys()
    story.journals.note_dropped(found, 7)
    story.look()
    story.check_done()


@pytest.mark.parametrize("kind", [RunKind.COMPACTION, RunKind.ERASURE])
def test_follower_that_becomes_the_leader_publishes(tmp_path: Path, kind: RunKind) -> None:
    story = Story(tmp_path / "story", 4)
    story.stage("one", kind)
    finisher = story.finisher()
    story.leads = False
    for _ in range(2):
        finisher.run()
    assert story.partition.segments() == story.before
    story.leads = True
    finisher.run()
    assert story.partition.segments() != story.before
    story.finish()


def test_segment_that_is_not_in_the_bucket_is_not_dropped(tmp_path: Path) -> None:
    """The journal may be newer than what the broker sees of the tier."""
    story = Story(tmp_path / "story", 3)
    log = story.partition.log
    log.delete_old_segments(story.partition.clock.now_ms(), erased_end_offset=10**9)
    assert {value for value in story.values if value >= story.end} <= story.local_values().keys()
    assert log.has_files_below(10**9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_process_cut_off_anywhere_loses_nothing_and_the_next_one_ends_the_work(
    tmp_path: Path, seed: int
) -> None:
    outcomes = set()
    for number in itertools.count():
        story = Story(tmp_path / str(number), seed)
        story.countdown.left = number
        try:
            story.stage("one")
            story.finish()
        except CutOffError:
            pass
        else:
            break
        story.countdown.left = None
        story.partition.restart()
        story.partition.copy_task.run()
        story.check_nothing_is_lost()
        # First the broker's next looks, then the operator's next run of the job.
        story.finish()
        story.check_nothing_is_lost()
        for found in story.journals.find():
            outcomes.add("undone")
            assert found.journal is None or found.journal.state is JournalState.STAGING
            undo_run(story.storage, story.journals, found)
        if story.partition.segments() == story.before:
            story.stage("two")
            story.finish()
        else:
            outcomes.add("finished")
        story.check_done()
    story.check_done()
    assert outcomes == {"undone", "finished"}
