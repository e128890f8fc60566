"""Which remote segments expire: expiration_plan.txt. Cases of Kafka's RemoteLogManagerTest around
retention, and those in which Isotherm deletes more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.tasks.expiration_plan import (
    ExpirationState,
    plan_expiration,
    size_over_retention,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from tests.support.transcript import Command, Scenario, Script, pairs

SCRIPT = Script(Path(__file__).with_name("expiration_plan.txt"))
NOW_MS = 1_000_000
STATES = {
    "copying": RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    "abandoned": RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    "deleting": RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
}


class Plans:
    def __init__(self, remote_segment: Callable[..., RemoteLogSegmentMetadata]) -> None:
        self._remote_segment = remote_segment

    def run(self, command: Command) -> str:
        if command.name != "plan":
            raise command.unknown()
        common = command.texts()
        return "\n".join(self._plan(line, common | line.texts()) for line in command.inputs())

    def _plan(self, line: Command, options: dict[str, str]) -> str:
        words = [] if line.flag("none") else line.words()
        segments = [self._segment(*word.split("/")) for word in words]
        state = ExpirationState(
            lineage=[EpochEntry(*entry) for entry in pairs(options.pop("lineage", "0:0"))],
            log_start_offset=int(options.pop("start", 0)),
            log_end_offset=1000,
            local_segments=pairs(options.pop("local", "")),
            copied_offset=int(options.pop("copied", -1)),
            retention_ms=int(options.pop("retention_ms", -1)),
            retention_bytes=int(options.pop("retention_bytes", -1)),
            now_ms=NOW_MS,
            broker_id=0,
        )
        assert not options
        copying = {
            segment.segment_id
            for word, segment in zip(words, segments, strict=True)
            if word.endswith("/copying")
        }
        plan = plan_expiration(segments, state, copying)
        output = [
            f"{deletion.metadata.start_offset}-{deletion.metadata.end_offset_inclusive}"
            f" {deletion.reason.name}"
            for deletion in plan.deletions
        ]
        if plan.log_start_offset is not None:
            output.append(f"log start {plan.log_start_offset}")
        if size_over := size_over_retention(segments, state):
            output.append(f"over by {size_over}")
        return ", ".join(output) or "-"

    def _segment(self, offsets: str, *attributes: str) -> RemoteLogSegmentMetadata:
        start, end = map(int, offsets.split("-"))
        epochs: dict[int, int] = {}
        more: dict[str, Any] = {}
        for attribute in attributes:
            if attribute in STATES:
                more["state"] = STATES[attribute]
            elif attribute.endswith("ms"):
                more["max_timestamp_ms"] = NOW_MS - int(attribute.removesuffix("ms"))
            elif attribute.endswith("B"):
                more["size"] = int(attribute.removesuffix("B"))
            elif attribute.startswith("broker"):
                more["broker_id"] = int(attribute.removeprefix("broker"))
            else:
                epochs |= pairs(attribute)
        return self._remote_segment(epochs or {0: start}, end, **more)


@pytest.mark.parametrize("scenario", SCRIPT.scenarios, ids=lambda each: each.name)
def test_plan(
    scenario: Scenario, remote_segment: Callable[..., RemoteLogSegmentMetadata], rewrite: bool
) -> None:
    scenario.check(Plans(remote_segment), rewrite=rewrite)
