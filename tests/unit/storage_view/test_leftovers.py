"""What is left over in the remote tier, by cause."""

from __future__ import annotations

from isotherm.storage_view.leftovers import LeftoverCause, leftovers
from isotherm.storage_view.remote_segments import RemoteSegments
from tests.support.scripted_cluster import NOW_MS, damaged_cluster, local_tier, remote_segment

MIB = 1 << 20


def test_each_cause_is_reported_with_its_bytes_and_age() -> None:
    sound, damaged = damaged_cluster(history=1).read().topics["orders"].partitions
    assert sound.state.local is not None
    assert list(leftovers(sound.state.local, sound.segments, NOW_MS)) == []
    assert damaged.state.local is not None
    found = {
        leftover.cause: leftover
        for leftover in leftovers(damaged.state.local, damaged.segments, NOW_MS)
    }
    assert found.keys() == {LeftoverCause.UPLOAD_ABANDONED, LeftoverCause.DELETION_UNFINISHED}
    # Finished segments cover all offsets of one upload, so it is abandoned. The other upload is
    # still at work.
    upload = found[LeftoverCause.UPLOAD_ABANDONED]
    assert (upload.segments, upload.size_in_bytes, upload.first_offset) == (1, MIB, 2000)
    assert upload.oldest_event_ms == NOW_MS - 60_000
    assert found[LeftoverCause.DELETION_UNFINISHED].first_offset == 0


def test_segments_below_the_log_start_wait_for_expiration() -> None:
    segments = RemoteSegments.of_metadata(
        [remote_segment(n + 1, n * 10, n * 10 + 9) for n in (0, 1)]
    )
    (left,) = leftovers(local_tier(15, 20, 30, 100), segments, NOW_MS)
    assert (left.cause, left.segments) == (LeftoverCause.BELOW_LOG_START, 1)
