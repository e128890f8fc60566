"""Compaction in place: staged by a job, published by the broker, with a crash at any step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.log.log_read import FetchIsolation
from isotherm.metrics.registry import Metrics
from isotherm.record.batch import Record, build_batch, iterate_batches, read_records
from isotherm.remote.compaction.compacted_piece import CompactionRules
from isotherm.remote.metadata.folding.fold import fold_metadata_partition, fold_metadata_topic
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.rewriting.finisher import RewriteFinisher, TierReplacementTarget
from isotherm.remote.rewriting.journal import JournalState, RewriteJournals
from isotherm.remote.rewriting.run_recovery import undo_run
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from tests.support.mortal_store import Countdown, CutOffError, MortalClient
from tests.support.tiered_partition import TieredPartition

KEYS = (b"a", b"b", b"c", b"d", b"a", b"b", b"a", b"e", b"a", b"b")
KEEP_OLD_MS = 5000


class Story:
    """One partition at level 1, tiered in a few segments, and a job that compacts it."""

    def __init__(self, directory: Path, local_compaction: Callable[..., Any]) -> None:
        self.countdown = Countdown()
        self.leads = True
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
        self.written: dict[int, Record] = {}
        for number, key in enumerate(KEYS):
            value = None if number == 6 else b"%d" % number + bytes(60)
            batch = build_batch([(self.partition.clock.now_ms(), key, value, ())])
            offset = self.partition.append_batch(batch)
            self.written[offset] = Record(offset, 0, key, value, ())
            if number % 3 == 2:
                self.partition.log.roll()
        self.partition.log.roll()
        self.partition.copy_task.run()
        self.partition.delete_local_segments()
        self.job = local_compaction(
            self.storage,
            self.journals,
            directory / "job",
            CompactionRules(now_ms=self.now_ms(), delete_retention_ms=1000),
        )
        self.before = self.partition.segments()
        assert len(self.before) == 4

    def _count_appends(self, topic: Any) -> None:
        append = topic.append

        def counted(*arguments: Any) -> int:
            self.countdown.step()
            offset: int = append(*arguments)
            return offset

        topic.append = counted

    def now_ms(self) -> int:
        return self.partition.clock.now_ms()

    def stage(self, run: str = "one") -> None:
        self.job.stage(run, self.before, in_place=True, keep_old_ms=KEEP_OLD_MS)

    def finisher(
        self, abandoned_after_ms: int = 10**12, *, is_alone: bool = True
    ) -> RewriteFinisher:
        return RewriteFinisher(
            self.journals,
            self.storage,
            TierReplacementTarget(
                self.partition.tier,
                self.partition.metadata,
                lambda _: self.leads and self.partition.topic_exists,
            ),
            abandoned_after_ms=abandoned_after_ms,
            is_alone=is_alone,
            clock=self.partition.clock,
            metrics=Metrics(),
        )

    def look_twice(self) -> None:
        """Let the broker publish, and clean up after the old segments' grace period."""
        self.finisher().run()
        self.partition.clock.advance(KEEP_OLD_MS)
        self.finisher().run()

    def records(self) -> list[Record]:
        return list(read_through(self.partition))

    def check_readable(self) -> None:
        """A consumer sees only what was written, in order, with the newest record of each key among
        it."""
        found = self.records()
        assert [each.offset for each in found] == sorted({each.offset for each in found})
        for record in found:
            assert (record.key, record.value) == self.written[record.offset][2:4]
        newest = {record.key: record.offset for record in self.written.values()}
        assert set(newest.values()) <= {each.offset for each in found}

    def check_done(self) -> None:
        """The log is compacted, and the bucket holds the live segments and nothing else."""
        assert [record.offset for record in self.records()] == [2, 3, 7, 8, 9]
        self.check_clean()

    def check_clean(self) -> None:
        live = self.partition.segments()
        assert {each.state for each in live} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
        layout = ObjectStoreSettings(url="memory:///").create_layout()
        names = sorted(key for each in live for key in layout.object_keys(each))
        assert self.partition.object_names() == names


def read_through(partition: TieredPartition) -> Iterator[Record]:
    offset = partition.log.log_start_offset
    while offset < partition.log.local_log_start_offset:
        data = partition.read_bytes(offset, 300, isolation=FetchIsolation.HIGH_WATERMARK)
        next_offset = offset
        for position, header in iterate_batches(data):
            yield from (
                record for record in read_records(data, position, header) if record.offset >= offset
            )
            next_offset = header.next_offset
        if next_offset == offset:
            return
        offset = next_offset


@pytest.fixture
def story(tmp_path: Path, local_compaction: Callable[..., Any]) -> Story:
    return Story(tmp_path / "story", local_compaction)


def test_segments_are_replaced_by_the_partitions_leader_alone(story: Story) -> None:
    story.stage()
    story.leads = False
    story.finisher().run()
    assert story.partition.segments() == story.before
    story.leads = True
    story.look_twice()
    story.check_done()


def test_segments_are_replaced_under_their_keys_and_the_old_ones_go_later(story: Story) -> None:
    story.stage()
    assert story.partition.segments() == story.before
    story.check_readable()
    story.finisher().run()
    after = story.partition.segments()
    replaced = [new for new in after if new not in story.before]
    assert [(new.start_offset, new.end_offset_inclusive) for new in after] == [
        (old.start_offset, old.end_offset_inclusive) for old in story.before
    ]
    assert len(replaced) == 3
    story.check_readable()
    (found,) = story.journals.find()
    assert found.journal is not None
    assert found.journal.state is JournalState.PUBLISHED
    for old in story.before:  # readers that planned with them still read them
        assert len(story.storage.fetch_log_segment(old, 0)) == old.segment_size_in_bytes
    story.partition.clock.advance(KEEP_OLD_MS)
    story.finisher().run()
    story.check_done()
    story.partition.restart()
    assert story.partition.segments() == after
    story.check_done()


def test_a_fetch_that_began_with_a_segment_goes_on_with_the_one_in_its_place(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old objects are deleted between the look-up of the metadata and the read."""
    story.stage()
    find = story.partition.metadata.remote_log_segment_metadata
    answers = 0

    def find_then_compact(*arguments: Any) -> Any:
        nonlocal answers
        found = find(*arguments)
        answers += 1
        if answers == 1:
            story.look_twice()
        return found

    monkeypatch.setattr(story.partition.metadata, "remote_log_segment_metadata", find_then_compact)
    records = list(read_through(story.partition))
    assert [record.offset for record in records] == [2, 3, 7, 8, 9]


def test_every_reader_of_the_metadata_topic_sees_the_replacement(story: Story) -> None:
    story.stage()
    story.look_twice()
    live = story.partition.segments()
    topic = story.partition.metadata_topic
    owner = story.partition.partition
    assert fold_metadata_topic(topic, lambda _: True)[owner].segments() == live
    number = metadata_partition(owner, topic.partition_count)
    columnar = fold_metadata_partition(topic, number, lambda _: True, columnar_records_min=0)
    assert columnar.partitions[0].cache.segments() == live
    story.partition.clean_up()
    assert story.partition.segments() == live
    story.check_done()


@pytest.mark.slow
def test_a_process_cut_off_anywhere_leaves_a_right_log_and_the_next_one_ends_the_work(
    tmp_path: Path, local_compaction: Callable[..., Any]
) -> None:
    outcomes = set()
    for number in itertools.count():
        story = Story(tmp_path / str(number), local_compaction)
        story.countdown.left = number
        try:
            story.stage()
            story.look_twice()
        except CutOffError:
            pass
        else:
            break
        story.countdown.left = None
        story.partition.restart()
        story.check_readable()
        # First the broker's next look, then the operator's next run of the job.
        story.look_twice()
        story.check_readable()
        for found in story.journals.find():
            outcomes.add("undone")
            assert found.journal is None or found.journal.state is JournalState.STAGING
            undo_run(story.storage, story.journals, found)
        if story.partition.segments() == story.before:
            story.check_clean()
            story.stage("two")
            story.look_twice()
        else:
            outcomes.add("finished")
        story.check_done()
    assert number > 25
    assert outcomes == {"undone", "finished"}


def test_a_look_costs_a_listing_while_the_old_segments_wait(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.stage()
    finisher = story.finisher()
    finisher.run()
    requests: list[str] = []
    client = story.storage.client
    for name in ("get", "list_objects", "put", "delete"):
        monkeypatch.setattr(client, name, noted(requests, name, getattr(client, name)))
    finisher.run()
    # Only the journal that the last look stored has to be read, and then its folder.
    assert requests == ["list_objects", "get", "list_objects"]
    for _ in range(3):
        finisher.run()
    assert requests == ["list_objects", "get", *4 * ["list_objects"]]
    story.partition.clock.advance(KEEP_OLD_MS)
    finisher.run()
    story.check_done()


def noted(requests: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        requests.append(name)
        return call(*arguments)

    return called


def test_a_damaged_journal_holds_up_no_other_run(story: Story) -> None:
    story.partition.damage_declared = "a journal that is none"
    damaged = f"isotherm-rewrites/t-{'A' * 22}/0/run/journal"
    story.storage.client.put(damaged, b"what?")
    story.stage()
    finisher = story.finisher()
    finisher._target = ServesAll(finisher._target)
    finisher.run()
    assert story.partition.segments() != story.before
    story.check_readable()


class ServesAll:
    """The replacement target of a broker that leads every partition."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def serves(self, partition: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def test_an_abandoned_run_is_undone_by_the_broker_after_its_grace(story: Story) -> None:
    story.countdown.left = 8
    with pytest.raises(CutOffError):
        story.stage()
    story.countdown.left = None
    (found,) = story.journals.find()
    story.partition.clock.advance(found.modified_ms - story.now_ms() + 999)
    story.finisher(abandoned_after_ms=1000).run()
    assert story.journals.find() == [found]
    story.partition.clock.advance(1)
    story.finisher(abandoned_after_ms=1000).run()
    assert not story.journals.find()
    story.check_clean()


def test_an_abandoned_run_is_reported_once_where_another_broker_may_publish_it(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    story.countdown.left = 8
    with pytest.raises(CutOffError):
        story.stage()
    story.countdown.left = None
    story.partition.damage_declared = "a run that an operator undoes"
    found, objects = story.journals.find(), story.partition.objects()
    story.partition.clock.advance(found[0].modified_ms - story.now_ms() + 1000)
    finisher = story.finisher(abandoned_after_ms=1000, is_alone=False)
    for _ in range(2):
        finisher.run()
    assert (story.journals.find(), story.partition.objects()) == (found, objects)
    assert sum("--recover --run" in record.getMessage() for record in caplog.records) == 1


def test_a_partition_that_leaves_in_the_middle_keeps_what_was_staged(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition's next leader publishes the staged segments."""
    story.stage()
    metadata = story.partition.metadata
    replace_segment = metadata.replace_remote_log_segment

    def leave_and_replace(*arguments: Any) -> Any:
        metadata.on_stop_partitions([story.partition.partition])
        return replace_segment(*arguments)

    monkeypatch.setattr(metadata, "replace_remote_log_segment", leave_and_replace)
    before = story.partition.objects()
    story.finisher().run()
    assert before.items() <= story.partition.objects().items()
    monkeypatch.undo()
    metadata.on_partition_leadership_changes([story.partition.partition], ())
    metadata.poll()
    story.look_twice()
    story.check_done()


def test_a_segment_that_is_deleted_meanwhile_is_not_replaced(story: Story) -> None:
    story.stage()
    story.partition.tier.delete_segment(story.before[0])
    story.look_twice()
    assert story.partition.segments()[0].start_offset == story.before[1].start_offset
    assert len(story.partition.segments()) == 3
    story.check_clean()


def test_what_was_staged_and_is_gone_is_never_published(story: Story) -> None:
    """The staged objects were deleted. The old segments answer, and the next look tries again."""
    story.partition.damage_declared = "a run that cannot be finished"
    story.stage()
    for found in story.journals.find():
        assert found.journal is not None
        story.storage.delete_log_segment_data(found.journal.replacements[0].new)
    story.look_twice()
    assert story.partition.segments() == story.before
    story.check_readable()


def test_at_level_0_nothing_is_replaced(story: Story) -> None:
    story.stage()
    story.partition.damage_declared = "a run that waits"
    story.partition.metadata_level = 0
    story.partition.restart()
    story.finisher().run()
    assert story.partition.segments() == story.before
    story.check_readable()


def test_a_topic_that_is_not_served_here_is_let_be(story: Story) -> None:
    story.stage()
    story.partition.damage_declared = "a run that waits"
    story.partition.topic_exists = False
    story.finisher(abandoned_after_ms=0).run()
    assert len(story.journals.find()) == 1


def test_a_run_ends_with_its_partition(story: Story) -> None:
    story.stage()
    story.finisher().run()
    story.partition.topic_exists = False
    delete_remote_partition(story.partition.tier, story.partition.partition)
    assert story.partition.objects() != {}
    story.finisher().run()
    assert story.partition.objects() == {}


def test_a_run_of_a_partition_that_another_cluster_has_is_left_alone(story: Story) -> None:
    story.stage()
    story.partition.topic_exists = False
    story.partition.metadata.on_stop_partitions([story.partition.partition])
    before = story.partition.objects()
    story.finisher().run()
    assert story.partition.objects() == before
    story.partition.damage_declared = "a run that waits"
