"""A history that a job has staged is adopted by the broker, with a crash at any step."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.partitions.adopted_history import begin_behind, is_replicated
from isotherm.broker.partitions.partition import Partition
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.registry import Metrics
from isotherm.remote.rewriting.finisher import RewriteFinisher, TierReplacementTarget
from isotherm.remote.rewriting.journal import (
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import Offset, TopicIdPartition
from tests.support.led_topic import NobodyWaits, alone, led
from tests.support.staged_history import stage_history
from tests.support.tiered_partition import TieredPartition

COUNT = 40


class CutOffError(BaseException):
    """The process ends here. A BaseException, so that no handler of errors catches it."""


class Countdown:
    """Ends the process at the n-th durable change."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise CutOffError


class MortalClient(ObjectClient):
    countdown: Countdown

    def put(self, key: str, content: Any) -> None:
        self.countdown.step()
        super().put(key, content)

    def delete(self, key: str) -> None:
        self.countdown.step()
        super().delete(key)


class Broker:
    """A partition at level 1 whose log a broker leads, and the job that stages histories for it."""

    def __init__(self, directory: Path, leader_epoch: int) -> None:
        self.directory = directory
        self.countdown = Countdown()
        settings = ObjectStoreSettings(url=(directory / "bucket").as_uri())
        store = open_object_store(settings, create_folder=True)
        self.storage = ObjectStoreRemoteStorageManager(settings, store=store)
        client = MortalClient(settings, store)
        client.countdown = self.countdown
        self.storage._client = client
        self.journals = RewriteJournals(client, self.storage.root_directory)
        self.tiered = TieredPartition(directory, metadata_level=1, storage=self.storage)
        self.tiered.leader_epoch = leader_epoch
        self._runs = itertools.count()
        for topic in (self.tiered.metadata_topic, self.tiered.audit_topic):
            self._count_appends(topic)
        self.start()

    def _count_appends(self, topic: Any) -> None:
        append_at = topic.append_at

        def counted(*arguments: Any) -> None:
            self.countdown.step()
            append_at(*arguments)

        topic.append_at = counted

    def start(self) -> None:
        tiered = self.tiered
        self.partition = Partition(tiered.partition, tiered.log, alone(tiered.clock), NobodyWaits())
        self.partition.make_leader(led(leader_epoch=tiered.leader_epoch))

    def restart(self) -> None:
        self.countdown.left = None
        self.tiered.restart()
        self.start()

    # ---- AdoptsHistories

    def durable_log_start(self, partition: TopicIdPartition) -> Offset:
        return self.partition.log.durable_log_start_offset

    def begin_behind(
        self, partition: TopicIdPartition, start_offset: Offset, end_offset: Offset
    ) -> None:
        def restart_log(log: PartitionLog, offset: Offset, **options: Any) -> None:
            self.countdown.step()
            log.truncate_fully_and_start_at(offset, **options)

        logs: Any = SimpleNamespace(truncate_log_fully_and_start_at=restart_log)
        begin_behind(self.partition, logs, start_offset, end_offset)

    def is_replicated(self, partition: TopicIdPartition, end_offset: Offset) -> bool:
        return is_replicated(self.partition, end_offset)

    # ---- the job and the broker's task

    def stage(self, start_offset: Offset = 0) -> list[bytes]:
        """Stage a history of several segments; returns its values."""
        values = [b"%d" % offset for offset in range(start_offset, start_offset + COUNT)]
        stage_history(
            self.storage,
            self.journals,
            self.directory / "job",
            self.tiered.partition,
            values,
            start_offset,
            run=f"run-{next(self._runs)}",
        )
        return values

    def put_sibling(self, state: JournalState) -> None:
        """The journal of another partition of the run that `stage` has begun first. This broker
        does not lead it."""
        sibling = self.tiered.partition._replace(partition=1)
        self.journals.put(
            RewriteJournal(
                kind=RunKind.LOAD,
                run="run-0",
                partition=sibling,
                state=state,
                time_ms=0,
                in_place=True,
            )
        )

    def look(self, abandoned_after_ms: int = 10**12) -> None:
        """One pass of the broker's task."""
        target = TierReplacementTarget(self.tiered.tier, self.tiered.metadata, lambda _: True)
        RewriteFinisher(
            self.journals,
            self.storage,
            target,
            abandoned_after_ms=abandoned_after_ms,
            is_alone=True,
            clock=self.tiered.clock,
            metrics=Metrics(),
            logs=self,
        ).run()

    def check_adopted(self, values: list[bytes]) -> None:
        """The log has these values, and the bucket their segments and nothing else."""
        assert not self.journals.find()
        assert self.tiered.read_all() == dict(enumerate(values))
        live = self.tiered.segments()
        assert {each.state for each in live} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
        layout = ObjectStoreSettings(url="memory:///").create_layout()
        names = sorted(key for each in live for key in layout.object_keys(each))
        assert self.tiered.object_names() == names


def test_a_load_is_adopted_when_all_its_partitions_are_staged(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    values = broker.stage()
    broker.put_sibling(JournalState.STAGING)
    broker.look()
    assert broker.tiered.log.log_end_offset == 0
    assert not broker.tiered.segments()
    broker.put_sibling(JournalState.STAGED)
    broker.look()
    (sibling,) = broker.journals.find()
    broker.journals.forget(sibling)
    broker.check_adopted(values)


def test_an_abandoned_load_is_undone_whole(tmp_path: Path) -> None:
    """The job ended between the journals of two partitions."""
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    broker.stage()
    broker.put_sibling(JournalState.STAGED)
    ours = next(run for run in broker.journals.find() if run.partition.partition == 0)
    assert ours.journal is not None
    broker.journals.put(replace(ours.journal, state=JournalState.STAGING, new_segments=()))
    broker.look()
    assert len(broker.journals.find()) == 2
    broker.look(abandoned_after_ms=-(10**13))
    assert not broker.journals.find()
    assert not broker.tiered.object_names()


@pytest.mark.parametrize("leader_epoch", [0, 3])
def test_a_history_is_adopted_and_producers_go_on(tmp_path: Path, leader_epoch: int) -> None:
    broker = Broker(tmp_path / "broker", leader_epoch)
    values = broker.stage()
    broker.look()
    broker.check_adopted(values)
    values += broker.stage(COUNT)
    broker.look()
    broker.check_adopted(values)
    log = broker.tiered.log
    assert log.local_log_start_offset == log.high_watermark == log.log_end_offset == 2 * COUNT
    assert broker.tiered.append(b"new") == 2 * COUNT
    assert log.leader_epochs.entries[-1].epoch == leader_epoch
    broker.restart()
    assert broker.tiered.read_all() == dict(enumerate([*values, b"new"]))
    # Retention and copies take the history for their own.
    broker.tiered.log.roll()
    broker.tiered.copy_task.run()
    broker.tiered.delete_local_segments()
    broker.tiered.expiration_task.run()
    assert broker.tiered.read_all() == dict(enumerate([*values, b"new"]))


def test_after_a_crash_at_any_step_the_next_pass_finishes(tmp_path: Path) -> None:
    for step in itertools.count():
        broker = Broker(tmp_path / f"broker-{step}", leader_epoch=2)
        values = broker.stage()
        broker.countdown.left = step
        try:
            broker.look()
        except CutOffError:
            assert broker.tiered.log.log_end_offset in (0, COUNT)
        else:
            break
        broker.restart()
        broker.look()
        broker.check_adopted(values)
    # Manifests, the log, two events of two records for each segment, announcements, the journal.
    assert step > 20


def test_a_topic_that_got_records_refuses_and_keeps_them(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    broker.stage()
    broker.tiered.append(b"acknowledged")
    broker.look()
    assert broker.tiered.read_all() == {0: b"acknowledged"}
    assert not broker.tiered.segments()
    (found,) = broker.journals.find()
    assert found.journal is not None
    assert found.journal.state is JournalState.REFUSED
    assert "has got records" in found.journal.reason
    broker.journals.forget(found)  # as the job does
    assert not broker.tiered.object_names()


def test_records_after_a_crash_before_the_log_began_behind_the_history(tmp_path: Path) -> None:
    """The manifests are stored when the process ends, and a producer is faster than the next
    pass."""
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    broker.stage()
    broker.countdown.left = 3
    with pytest.raises(CutOffError):
        broker.look()
    broker.restart()
    broker.tiered.append(b"acknowledged")
    broker.look()
    assert broker.tiered.read_all() == {0: b"acknowledged"}
    assert not broker.tiered.segments()
    broker.journals.forget(broker.journals.find()[0])
    assert not broker.tiered.object_names()


def test_a_tier_with_other_segments_at_these_offsets_refuses(tmp_path: Path) -> None:
    """The topic got records after the plan, and has only the remote copies of them left."""
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    broker.stage()
    for number in range(2 * COUNT):
        broker.tiered.append(b"%d" % number)
    broker.tiered.log.roll()
    broker.tiered.copy_task.run()
    broker.tiered.delete_local_segments()
    assert broker.tiered.log.local_log_start_offset >= COUNT
    broker.look()
    assert broker.tiered.read_all() == {n: b"%d" % n for n in range(2 * COUNT)}
    (found,) = broker.journals.find()
    assert found.journal is not None
    assert found.journal.state is JournalState.REFUSED
    broker.journals.forget(found)


def test_an_expired_segment_does_not_come_back(tmp_path: Path) -> None:
    """Retention deletes a published segment before the journal is gone."""
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    values = broker.stage()
    for run in broker.journals.find():
        assert run.journal is not None
        broker.look()
        # The last step was cut off, and the replicas may lag: the journal is back.
        broker.journals.put(run.journal)
    first = broker.tiered.segments()[0]
    broker.tiered.log.maybe_increment_log_start_offset(first.end_offset_inclusive + 1)
    broker.tiered.log._durable_log_start_offset = broker.tiered.log.log_start_offset
    broker.tiered.expiration_task.run()
    assert broker.tiered.segments()[0] != first
    broker.look()
    kept = {n: each for n, each in enumerate(values) if n > first.end_offset_inclusive}
    assert broker.tiered.read_all() == kept
    assert not broker.journals.find()
    assert not [name for name in broker.tiered.object_names() if str(first.segment_id.id) in name]


def test_a_run_that_ends_between_listing_and_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that waits lists the journals while the broker removes one."""
    broker = Broker(tmp_path / "broker", leader_epoch=0)
    broker.stage()
    listed = broker.journals.list_runs()
    broker.look()
    monkeypatch.setattr(broker.journals, "list_runs", lambda: listed)
    assert broker.journals.find() == []
