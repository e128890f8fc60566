"""The schedules find the loss of acknowledged records that they are meant to find.

The tests restore the old order. A partition was ready before the interrupted event was applied, and
a deletion did not check its plan again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isotherm.log.partition_log import PartitionLog
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.tasks.tier import RemoteTierAccess
from tests.support.schedules.oracle import Violation
from tests.support.schedules.scenarios import explore, play, scenario_of


class ReadyTooEarly(TopicBasedRemoteLogMetadataManager):
    """Becomes ready for what it has read before it checks the audit topic."""

    _audit_checked: frozenset[int] = frozenset()

    def _read(self, number: int, reader: Any) -> None:
        reader.poll()
        reader.open(reader.unopened())
        if number in self._audit_checked or not self._writer.is_keyed(number):
            return
        with self._writer.lock(number):
            self._settle(number, reader)
            self._audit_checked |= {number}


def delete_without_another_look(
    tier: RemoteTierAccess, metadata: RemoteLogSegmentMetadata, *_: object
) -> bool:
    started = tier.update_of(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, None)
    if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
        tier.publish(started)
    tier.storage.delete_log_segment_data(metadata.updated(started))
    tier.publish(tier.update_of(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, None))
    return True


def test_a_plan_from_before_the_cut_event_loses_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteTierAccess, "delete_segment", delete_without_another_look)
    scenario = scenario_of("cut-event")
    (found,) = explore(scenario, tmp_path / "explored", ReadyTooEarly, limit=455).failures
    assert isinstance(found.error, Violation)
    assert "acknowledged record is lost" in str(found.error)
    assert any("CRASH before append metadata COPY_SEGMENT_FINISHED" in line for line in found.story)

    again = play(scenario, found.choices, tmp_path / "again", ReadyTooEarly).failure
    assert again is not None
    assert (str(again.error), again.story) == (str(found.error), found.story)


@pytest.mark.nightly
def test_a_log_start_that_a_crash_forgets_lies_below_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant that must fail deletes segments below the log start before the log start is
    durable."""
    scenario = scenario_of("gap-forgotten")
    assert explore(scenario, tmp_path / "sound", limit=400).failures == []
    monkeypatch.setattr(PartitionLog, "make_log_start_durable", lambda _: None)
    monkeypatch.setattr(
        PartitionLog, "durable_log_start_offset", property(lambda log: log.log_start_offset)
    )
    failures = explore(scenario, tmp_path / "unsound", limit=400).failures
    assert failures
    assert all("cannot read on from the log start" in str(failure.error) for failure in failures)


@pytest.mark.parametrize("guard", ["whole", "another look"])
def test_either_guard_alone_keeps_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """One guard is enough: readiness only after the interrupted event is applied, or the second
    check before a deletion."""
    manager = TopicBasedRemoteLogMetadataManager if guard == "whole" else ReadyTooEarly
    if guard == "whole":
        monkeypatch.setattr(RemoteTierAccess, "delete_segment", delete_without_another_look)
    explored = explore(scenario_of("cut-event"), tmp_path, manager, limit=150)
    assert explored.failures == []
    assert explored.crashes["append metadata COPY_SEGMENT_FINISHED"] > 50
