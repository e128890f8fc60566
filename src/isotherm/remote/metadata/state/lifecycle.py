"""The valid transitions of segment states. Pure.

    from \\ to          STARTED  FINISHED  DELETE_STARTED  DELETE_FINISHED
    (none)             yes
    COPY_STARTED       yes      yes       yes
    COPY_FINISHED               yes       yes
    DELETE_STARTED                        yes             yes
    DELETE_FINISHED                                       yes

A state may follow itself, because events are replayed.
Source: Kafka RemoteLogSegmentState.isValidTransition.
"""

from __future__ import annotations

from isotherm.remote.segment_metadata import RemoteLogSegmentState

_SEGMENT_SUCCESSORS = {
    None: {RemoteLogSegmentState.COPY_SEGMENT_STARTED},
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: {
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    },
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: {
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    },
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: {
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    },
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: {RemoteLogSegmentState.DELETE_SEGMENT_FINISHED},
}


def is_valid_transition(
    source: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> bool:
    """Whether a segment in `source` (None: not known yet) may go to `target`."""
    return target in _SEGMENT_SUCCESSORS[source]
