"""The spans of the tier map. The model determines the kinds of each offset alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.storage_view.tier_map import (
    FIRST_LANE,
    NO_SEGMENT,
    SpanKind,
    Spans,
    map_cells,
    tier_spans,
)
from tests.support.scripted_cluster import NOW_MS, local_tier, remote_segment

STATE = RemoteLogSegmentState
KIND = SpanKind
GRACE_MS = 1000
END = 60

shapes = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.integers(1, 20),
        st.sampled_from((*STATE,)[:3]),
        st.sampled_from([0, 2 * GRACE_MS]),
    ),
    max_size=8,
)
borders = st.tuples(*[st.integers(0, END)] * 3).map(sorted)


def segments_of(shapes: list[tuple[int, int, STATE, int]]) -> list[RemoteLogSegmentMetadata]:
    return [
        remote_segment(number + 1, start, start + count - 1, state, age_ms=age_ms)
        for number, (start, count, state, age_ms) in enumerate(shapes)
    ]


def kinds_by_offset(spans: Spans) -> dict[int, list[KIND]]:
    found: dict[int, list[KIND]] = {}
    for kind, start, end in zip(spans.kind, spans.start, spans.end, strict=True):
        for offset in range(start, end):
            found.setdefault(offset, []).append(KIND(kind))
    return found


@given(shapes, borders)
def test_each_offset_is_where_its_reader_finds_it(
    shapes: list[tuple[int, int, STATE, int]], borders: list[int]
) -> None:
    log_start, local_start, end = borders
    segments = segments_of(shapes)
    finished = {
        offset
        for segment in segments
        if segment.state is STATE.COPY_SEGMENT_FINISHED
        for offset in range(segment.start_offset, segment.end_offset_inclusive + 1)
    }
    expected = {}
    for offset in {*range(log_start, end), *(each for each in finished if each >= log_start)}:
        if offset in finished:
            expected[offset] = [KIND.BOTH if offset >= local_start else KIND.REMOTE]
        else:
            expected[offset] = [KIND.LOCAL if offset >= local_start else KIND.MISSING]
    local = local_tier(log_start, local_start, end, 10)
    spans = tier_spans(local, RemoteSegments.of_metadata(segments), NOW_MS, GRACE_MS)
    found = kinds_by_offset(spans.of_kinds(FIRST_LANE))
    # Offsets between the high watermark and a segment beyond it are in no span.
    assert {o: k for o, k in found.items() if o < end or o in finished} == expected


@given(shapes, borders)
@example([(0, 10, STATE.COPY_SEGMENT_FINISHED, 0)], [10, 10, 20])
@example([(0, 10, STATE.COPY_SEGMENT_FINISHED, 0)], [9, 9, 20])
def test_segments_outside_the_log_say_why(
    shapes: list[tuple[int, int, STATE, int]], borders: list[int]
) -> None:
    log_start, local_start, end = borders
    segments = segments_of(shapes)
    finished = [segment for segment in segments if segment.state is STATE.COPY_SEGMENT_FINISHED]
    held = {
        offset
        for each in finished
        for offset in range(each.start_offset, each.end_offset_inclusive + 1)
        if offset >= log_start
    }
    expected = []
    for segment in segments:
        offsets = range(segment.start_offset, segment.end_offset_inclusive + 1)
        if segment.state is STATE.DELETE_SEGMENT_STARTED or (
            segment in finished and segment.end_offset_inclusive < log_start
        ):
            expected.append((KIND.DELETING, offsets.start, offsets.stop))
        elif segment.state is STATE.COPY_SEGMENT_STARTED:
            is_old = NOW_MS - segment.event_timestamp_ms > GRACE_MS
            kind = KIND.ORPHAN if is_old or set(offsets) <= held else KIND.COPYING
            expected.append((kind, offsets.start, offsets.stop))
    local = local_tier(log_start, local_start, end, 10)
    spans = tier_spans(local, RemoteSegments.of_metadata(segments), NOW_MS, GRACE_MS)
    second = spans.of_kinds(kind for kind in KIND if kind not in FIRST_LANE)
    found = zip(second.kind, second.start, second.end, strict=True)
    assert sorted((KIND(k), int(s), int(e)) for k, s, e in found) == sorted(expected)


@given(shapes, borders, st.integers(1, 12), st.tuples(st.integers(0, 40), st.integers(1, 40)))
def test_cells_lose_no_kind_and_no_segment(
    shapes: list[tuple[int, int, STATE, int]],
    borders: list[int],
    columns: int,
    window: tuple[int, int],
) -> None:
    first, end = window[0], sum(window)
    local = local_tier(*borders, 10)
    spans = tier_spans(local, RemoteSegments.of_metadata(segments_of(shapes)), NOW_MS, GRACE_MS)
    lane = spans.of_kinds(FIRST_LANE)
    cells = map_cells(lane, first, end, columns)
    assert len(cells) <= columns
    by_offset = kinds_by_offset(lane)
    for cell in cells:
        touched = [by_offset.get(offset, []) for offset in range(cell.start, cell.end)]
        assert set(cell.kinds) == {kind for kinds in touched for kind in kinds}
    seen = {offset for cell in cells for offset in range(cell.start, cell.end)}
    assert {offset for offset in by_offset if first <= offset < end} <= seen
    inside = lane.within(first, end)
    assert sum(cell.segments for cell in cells) == int((inside.segment != NO_SEGMENT).sum())
    assert sum(cell.size_in_bytes for cell in cells) == int(inside.size_in_bytes.sum())
