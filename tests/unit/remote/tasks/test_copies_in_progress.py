"""A watch holds every copy that is in progress at any moment of it."""

from __future__ import annotations

import uuid

from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=1), "t", 0)
BEFORE, DURING, BRIEF, ENDED = (
    RemoteLogSegmentId(PARTITION, uuid.UUID(int=number)) for number in range(4)
)


def test_watch_holds_every_copy_in_progress_at_any_moment_of_it() -> None:
    copies = CopiesInProgress()
    copies.begin(ENDED)
    copies.end(ENDED)
    copies.begin(BEFORE)
    with copies.watch() as watched:
        copies.end(BEFORE)
        copies.begin(BRIEF)
        copies.end(BRIEF)
        copies.begin(DURING)
    copies.begin(ENDED)
    assert watched == {BEFORE, BRIEF, DURING}


def test_copy_is_active_from_its_begin_to_its_end() -> None:
    copies = CopiesInProgress()
    copies.begin(DURING)
    assert copies.is_active(DURING)
    assert not copies.is_active(BEFORE)
    copies.end(BEFORE)
    assert copies.is_active(DURING)
    copies.end(DURING)
    assert not copies.is_active(DURING)


def test_watch_that_ends_leaves_the_others() -> None:
    """Two tasks watch at the same time, and their sets are equal at first."""
    copies = CopiesInProgress()
    with copies.watch() as outer:
        with copies.watch() as inner:
            pass
        copies.begin(DURING)
    assert (outer, inner) == ({DURING}, set())
