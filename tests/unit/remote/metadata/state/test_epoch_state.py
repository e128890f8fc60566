"""Where the segments of a leader epoch begin and end."""

from __future__ import annotations

from isotherm.remote.metadata.state.epoch_state import RemoteLogLeaderEpochState


def test_first_and_last_are_those_that_reach_farthest() -> None:
    state = RemoteLogLeaderEpochState()
    assert (state.first, state.last) == (None, None)
    state.finish(b"long", 10, 29)
    # Within the other one: it starts last, and does not end last.
    state.finish(b"nested", 15, 19)
    assert (state.first, state.last) == (b"long", b"long")
    state.finish(b"next", 30, 39)
    state.finish(b"before", 0, 9)
    assert (state.first, state.last) == (b"before", b"next")
    state.start_deletion(b"next", 30)
    assert state.last == b"long"
