"""Erasure in place: staged by a job, published by the broker, with a crash at any durable change.

A random log and a random selection: every record that was not selected is still there, and every
one that was is nowhere in the bucket and the log directory.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from isotherm.remote.reading.read_wait import NO_WAIT, NotInMemoryError, ReadWait
from isotherm.remote.rewriting.journal import JournalState, RunKind
from isotherm.remote.rewriting.run_recovery import undo_run
from tests.support.erasure_story import KEEP_OLD_MS, ErasureStory
from tests.support.mortal_store import CutOffError
from tests.support.tiered_partition import BROKER_ID


def test_local_copies_go_once_the_new_segments_answer(tmp_path: Path) -> None:
    story = ErasureStory(tmp_path / "story", 1)
    story.stage("one")
    assert story.local_contents() == story.before
    story.look()
    changed = max(
        segment.end_offset_inclusive
        for segment in story.segments_before
        if segment not in story.partition.segments()
    )
    assert story.partition.log.local_log_start_offset == changed + 1
    # The old objects stay for readers.
    assert story.selected <= dict(story.all_contents()).keys()
    story.finish()
    story.check_done()


def test_what_is_cached_of_old_segments_goes_with_the_local_copies(tmp_path: Path) -> None:
    """Indexes on the disk, and ranges that were read ahead."""
    story = ErasureStory(tmp_path / "story", 1)
    story.stage("one")
    partition = story.partition
    for segment in story.segments_before:
        partition.index_cache.get(segment)
        partition.read_ahead.read(segment, 0, 1, ReadWait())
    assert partition.read_ahead.size_in_bytes > 0
    story.look()
    replaced = [each for each in story.segments_before if each not in partition.segments()]
    assert replaced
    kept = [each for each in story.segments_before if each in partition.segments()]
    assert partition.index_cache.entry_count == len(kept)
    for segment in replaced:
        with pytest.raises(NotInMemoryError):
            partition.read_ahead.range_at(segment, 0, 1, NO_WAIT)
    for segment in kept:
        assert partition.read_ahead.range_at(segment, 0, 1, NO_WAIT)
    story.finish()
    story.check_done()


def test_journal_waits_for_each_replica(tmp_path: Path) -> None:
    story = ErasureStory(tmp_path / "story", 2)
    story.replicas = frozenset({BROKER_ID, 7})
    story.stage("one")
    story.finish()
    (found,) = story.journals.find()
    assert found.dropped_by == {BROKER_ID}
    assert not story.selected & dict(story.all_contents()).keys()
    story.journals.note_dropped(found, 7)
    story.look()
    story.check_done()


def test_staging_that_ends_behind_the_brokers_listing_leaves_no_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An announcement without a journal is that of an abandoned run, whose objects are deleted."""
    story = ErasureStory(tmp_path / "story", 1)
    listings = []
    announce = story.journals.announce

    def announced(*arguments: Any) -> None:
        announce(*arguments)
        listings.append(story.journals.list_runs())

    monkeypatch.setattr(story.journals, "announce", announced)
    story.stage("one")
    assert len(listings) > 1
    finisher = story.finisher()
    with monkeypatch.context() as patch:
        patch.setattr(story.journals, "list_runs", lambda: listings[0])
        finisher.run()
        story.partition.clock.advance(KEEP_OLD_MS)
        finisher.run()
    story.finish()
    story.check_done()


def test_live_segment_outlives_an_announcement_without_a_journal(tmp_path: Path) -> None:
    story = ErasureStory(tmp_path / "story", 1)
    story.stage("one")
    story.finish()
    segment = story.partition.segments()[0]
    story.journals.announce("lost", segment.segment_id, segment.start_offset)
    # The objects in the folder have the time of the machine's clock, which is not the story's.
    story.partition.clock.advance(10**13)
    story.finisher(abandoned_after_ms=0).run()
    story.check_done()


@pytest.mark.parametrize("kind", [RunKind.COMPACTION, RunKind.ERASURE])
def test_follower_that_becomes_the_leader_publishes(tmp_path: Path, kind: RunKind) -> None:
    story = ErasureStory(tmp_path / "story", 4)
    story.stage("one", kind)
    finisher = story.finisher()
    story.leads = False
    for _ in range(2):
        finisher.run()
    assert story.partition.segments() == story.segments_before
    story.leads = True
    finisher.run()
    assert story.partition.segments() != story.segments_before
    story.finish()


def test_segment_that_is_not_in_the_bucket_is_not_dropped(tmp_path: Path) -> None:
    """The journal may be newer than what the broker sees of the tier."""
    story = ErasureStory(tmp_path / "story", 3)
    log = story.partition.log
    log.delete_old_segments(story.partition.clock.now_ms(), erased_end_offset=10**9)
    assert {value for value in story.before if value >= story.end} <= story.local_contents().keys()
    assert log.has_files_below(10**9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_process_cut_off_anywhere_loses_nothing_and_the_next_one_ends_the_work(
    tmp_path: Path, seed: int
) -> None:
    outcomes = set()
    for number in itertools.count():
        story = ErasureStory(tmp_path / str(number), seed)
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
        if story.partition.segments() == story.segments_before:
            story.stage("two")
            story.finish()
        else:
            outcomes.add("finished")
        story.check_done()
    story.check_done()
    assert outcomes == {"undone", "finished"}
