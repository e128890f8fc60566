"""Recovery of interrupted compactions, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isotherm.remote.rewriting.journal import JournalState, RewriteJournal, RewriteJournals, RunKind
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.spark.jobs import rewrite_run as job
from isotherm.spark.jobs.compact import CompactionSettings, settings_of
from isotherm.spark.jobs.rewrite_run import RecoveryStep, recover, unfinished_runs
from isotherm.spark.jobs.rewrite_tasks import open_journals
from isotherm.spark.jobs.sweep import spared_segments
from isotherm.spark.option_parsing import parse_options
from isotherm.types import TopicIdPartition, uuid_to_text

PARTITIONS = [TopicIdPartition(uuid.UUID(int=4), "t", number) for number in range(3)]


class CutOffError(BaseException):
    """The process ends here. A BaseException, so that no handler of errors catches it."""


@pytest.fixture
def settings(tmp_path: Path) -> CompactionSettings:
    (tmp_path / "bucket").mkdir()
    options = parse_options({"path": str(tmp_path / "bucket"), "subscribe": "t"})
    return settings_of(options, now_ms=5, delete_retention_ms=1, to_url=str(tmp_path / "target"))


@pytest.fixture
def journals(settings: CompactionSettings) -> RewriteJournals:
    return open_journals(settings.written)


def put(journals: RewriteJournals, partition: int, state: JournalState, **more: Any) -> None:
    fields = {"kind": RunKind.COMPACTION, "run": "r", "time_ms": 5, "in_place": False, **more}
    journals.put(RewriteJournal(partition=PARTITIONS[partition], state=state, **fields))


def on(topic: str) -> Callable[[TopicIdPartition], bool]:
    return lambda partition: partition.topic == topic


def steps(settings: CompactionSettings) -> list[RecoveryStep]:
    return [each.step for each in recover(settings, unfinished_runs(settings, on("t")))]


def test_copy_is_finished_when_all_its_partitions_are_staged_and_else_undone(
    settings: CompactionSettings, journals: RewriteJournals
) -> None:
    put(journals, 0, JournalState.STAGED)
    put(journals, 1, JournalState.STAGED)
    put(journals, 2, JournalState.STAGED, run="other")
    put(journals, 1, JournalState.STAGING, run="other")
    assert steps(settings) == [
        RecoveryStep.FINISH, RecoveryStep.UNDO, RecoveryStep.FINISH, RecoveryStep.UNDO
    ]  # fmt: skip
    assert steps(settings) == []


def test_undoing_a_copy_that_is_cut_off_leaves_nothing_that_looks_finished(
    settings: CompactionSettings, journals: RewriteJournals, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(journals, 0, JournalState.STAGING)
    put(journals, 1, JournalState.STAGED)
    put(journals, 2, JournalState.STAGED)
    undo = job.undo_run
    for number in range(3):

        def mortal(*arguments: Any) -> None:
            undo(*arguments)
            raise CutOffError

        monkeypatch.setattr(job, "undo_run", mortal)
        with pytest.raises(CutOffError):
            steps(settings)
        monkeypatch.setattr(job, "undo_run", undo)
        left = unfinished_runs(settings, on("t"))
        assert len(left) == 2 - number
        assert {each.step for each in job.plan_recovery(left)} <= {RecoveryStep.UNDO}


def test_a_load_is_undone_whole_until_all_its_partitions_are_staged(
    settings: CompactionSettings, journals: RewriteJournals
) -> None:
    of_load: dict[str, Any] = {"kind": RunKind.LOAD, "in_place": True}
    put(journals, 0, JournalState.STAGED, **of_load)
    put(journals, 1, JournalState.STAGING, **of_load)
    put(journals, 2, JournalState.STAGED, **of_load)
    # The broker may have published a part of this one: the refused partition alone is forgotten.
    put(journals, 0, JournalState.STAGED, run="refused", **of_load)
    put(journals, 1, JournalState.REFUSED, run="refused", **of_load)
    assert steps(settings) == [
        RecoveryStep.UNDO, RecoveryStep.LEFT_TO_BROKER, RecoveryStep.UNDO, RecoveryStep.UNDO,
        RecoveryStep.UNDO,
    ]  # fmt: skip
    (left,) = unfinished_runs(settings, on("t"))
    assert (left.run, left.partition.partition) == ("refused", 0)


def test_what_is_staged_in_place_is_left_to_the_broker(
    settings: CompactionSettings, journals: RewriteJournals
) -> None:
    for number, state in enumerate((JournalState.STAGED, JournalState.PUBLISHED)):
        put(journals, number, state, in_place=True)
    assert steps(settings) == 2 * [RecoveryStep.LEFT_TO_BROKER]
    assert len(unfinished_runs(settings, on("t"))) == 2
    assert unfinished_runs(settings, on("another")) == []


def test_what_a_run_has_announced_is_spared_by_a_sweep(
    settings: CompactionSettings, journals: RewriteJournals
) -> None:
    announced = RemoteLogSegmentId(PARTITIONS[0], uuid.UUID(int=70))
    journals.announce("r", announced, 12)
    assert spared_segments(settings.written) == (uuid_to_text(announced.id),)
