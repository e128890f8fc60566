"""Transitions between states of a segment. The oracle is the table of Kafka's
RemoteLogSegmentState.isValidTransition, cell by cell."""

from __future__ import annotations

import pytest

from isotherm.remote.metadata.state.lifecycle import is_valid_transition
from isotherm.remote.segment_metadata import RemoteLogSegmentState

TABLE = {
    None: "yes no no no",
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: "yes yes yes no",
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: "no yes yes no",
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: "no no yes yes",
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: "no no no yes",
}


@pytest.mark.parametrize("source", list(TABLE))
def test_segment_transitions_are_those_of_kafka(source: RemoteLogSegmentState | None) -> None:
    allowed = ["yes" if is_valid_transition(source, to) else "no" for to in RemoteLogSegmentState]
    assert " ".join(allowed) == TABLE[source]
