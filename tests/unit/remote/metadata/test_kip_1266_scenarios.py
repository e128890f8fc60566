"""The scenarios of KIP-1266. The expected records are those of the proposal, and of decision 26
where the proposal leaves a gap.

`play` itself checks that objects and metadata agree, before and after the cleanup manager.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.metadata_scenarios import (
    SCENARIOS,
    Transcript,
    deletion_after_several_epochs,
    leadership_change,
    main,
    normal_upload,
    partition_deletion,
    play,
    retry_under_one_epoch,
)

PAGE = Path(__file__).parents[4] / "docs" / "metadata-scenarios.md"


def written(lines: list[str]) -> list[tuple[str, ...]]:
    """(key, api key, ...) of each record, without the offset and the broker."""
    return [
        tuple(word for word in line.split()[1:] if not word.startswith("broker=")) for line in lines
    ]


def events(transcript: Transcript) -> list[str]:
    """The event type and state of each event of the audit topic."""
    return [" ".join(words[2:]) for words in written(transcript.audit)]


def test_normal_upload_leaves_one_record(tmp_path: Path) -> None:
    played = play(normal_upload, tmp_path)
    key = "abc123:0:1000:3"
    assert written(played.messages) == [
        (key, "apiKey=0", "UUID-A", "COPY_SEGMENT_STARTED"),
        (key, "apiKey=0", "UUID-A", "COPY_SEGMENT_FINISHED"),
    ]
    assert written(played.audit) == [
        (key, "apiKey=0", "UUID-A", "COPY_SEGMENT_STARTED"),
        (key, "apiKey=1", "UUID-A", "COPY_SEGMENT_FINISHED"),
    ]
    assert written(played.compacted) == [(key, "apiKey=0", "UUID-A", "COPY_SEGMENT_FINISHED")]
    assert played.cache == ["UUID-A COPY_SEGMENT_FINISHED 1..1000 epoch=3  answers reads"]
    assert played.bucket == ["UUID-A indexes log rsm-manifest"]


def test_leadership_change_keeps_both_and_reads_from_the_later_leader(tmp_path: Path) -> None:
    played = play(leadership_change, tmp_path)
    assert events(played) == [
        "UUID-A COPY_SEGMENT_STARTED",
        "UUID-B COPY_SEGMENT_STARTED",
        "UUID-A COPY_SEGMENT_FINISHED",
        "UUID-B COPY_SEGMENT_FINISHED",
    ]
    assert [words[0] for words in written(played.compacted)] == [
        "abc123:0:2000:3",
        "abc123:0:2000:4",
    ]
    assert played.cache == [
        "UUID-A COPY_SEGMENT_FINISHED 1001..2000 epoch=3",
        "UUID-B COPY_SEGMENT_FINISHED 1001..2000 epoch=4  answers reads",
    ]
    assert [line.split()[0] for line in played.bucket] == ["UUID-A", "UUID-B"]
    assert played.after_cleanup == [
        "UUID-B COPY_SEGMENT_FINISHED 1001..2000 epoch=4  answers reads",
        "UUID-B indexes log rsm-manifest",
        "key abc123:0:2000:4",
    ]


def test_retry_under_one_epoch_takes_the_key_over(tmp_path: Path) -> None:
    """The proposal has no events for the deletion of the first attempt. Decision 26 adds them."""
    played = play(retry_under_one_epoch, tmp_path)
    key = "abc123:0:3000:5"
    assert written(played.messages) == [
        (key, "apiKey=0", "UUID-A", "COPY_SEGMENT_STARTED"),
        (key, "apiKey=0", "UUID-A", "DELETE_SEGMENT_STARTED"),
        (key, "apiKey=0", "UUID-A", "DELETE_SEGMENT_FINISHED"),
        (key, "null"),
        (key, "apiKey=0", "UUID-B", "COPY_SEGMENT_STARTED"),
        (key, "apiKey=0", "UUID-B", "COPY_SEGMENT_FINISHED"),
    ]
    assert len(played.audit) == 5
    assert written(played.compacted) == [(key, "apiKey=0", "UUID-B", "COPY_SEGMENT_FINISHED")]
    assert played.cache == ["UUID-B COPY_SEGMENT_FINISHED 2001..3000 epoch=5  answers reads"]
    assert played.bucket == ["UUID-B indexes log rsm-manifest"]


def test_deletion_after_several_epochs_forgets_every_key(tmp_path: Path) -> None:
    played = play(deletion_after_several_epochs, tmp_path)
    deletion = written(played.messages)[6:]
    buried = {words[0] for words in deletion if words[1] == "null"}
    assert buried == {f"abc123:0:1000:{epoch}" for epoch in (3, 4, 5, 6)}
    markers = [words for words in deletion if words[1] != "null"]
    assert {words[0] for words in markers} == {"abc123:0:1000:6"}
    assert deletion[-1] == ("abc123:0:1000:6", "null")
    assert events(played)[6:] == [
        f"{name} {state}"
        for name in ("UUID-A", "UUID-B", "UUID-C")
        for state in ("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
    ]
    assert (played.compacted, played.cache, played.bucket) == ([], [], [])


def test_partition_deletion_leaves_its_marker_alone(tmp_path: Path) -> None:
    played = play(partition_deletion, tmp_path)
    assert [words[2] for words in written(played.audit) if words[1] == "apiKey=2"] == [
        "DELETE_PARTITION_MARKED",
        "DELETE_PARTITION_STARTED",
        "DELETE_PARTITION_FINISHED",
    ]
    assert {words[0] for words in written(played.messages) if words[1] == "null"} == {
        "abc123:0:1000:3",
        "abc123:0:2000:3",
    }
    assert written(played.compacted) == [("abc123:0", "apiKey=2", "DELETE_PARTITION_FINISHED")]
    assert (played.cache, played.bucket) == ([], [])
    assert played.after_cleanup == ["key abc123:0"]


def test_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    assert printed.count("Scenario") == len(SCENARIOS)
    assert printed.rstrip() in PAGE.read_text()
