"""Transitions between states of a segment. The oracle is the table of Kafka's
RemoteLogSegmentState.isValidTransition, cell by cell."""

from __future__ import annotations

import itertools

import pytest

from isotherm.remote.metadata.state.lifecycle import is_valid_delete_transition, is_valid_transition
from isotherm.remote.segment_metadata import RemoteLogSegmentState, RemotePartitionDeleteState

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


def test_partition_deletion_goes_from_marked_over_started_to_finished() -> None:
    chain = [None, *RemotePartitionDeleteState]
    allowed = {
        (source, target)
        for source, target in itertools.product(chain, RemotePartitionDeleteState)
        if is_valid_delete_transition(source, target)
    }
    steps = set(itertools.pairwise(chain))
    assert allowed == steps | {(state, state) for state in RemotePartitionDeleteState}
