"""The rows of a consumer group's description."""

from __future__ import annotations

from isotherm.cli.groups import group_rows


def test_partitions_with_offsets_and_with_members_are_shown_once_in_order() -> None:
    rows = group_rows(
        committed={("b", 1): 5, ("a", 10): 7, ("gone", 0): 3},
        ends={("b", 1): 9, ("a", 10): 7, ("a", 2): 4},
        members={("a", 2): ("client", "/127.0.0.1"), ("b", 1): ("other", "/127.0.0.2")},
    )
    shown = [
        (row["topic"], row["partition"], row["committed_offset"], row["lag"], row["client_id"])
        for row in rows
    ]
    assert shown == [
        ("a", 2, None, None, "client"),
        ("a", 10, 7, 0, None),
        ("b", 1, 5, 4, "other"),
        ("gone", 0, 3, None, None),
    ]


def test_commit_beyond_the_end_is_a_negative_lag() -> None:
    """As Kafka's ConsumerGroupCommand: the sign of a topic that was deleted and created again."""
    (row,) = group_rows({("a", 0): 10}, {("a", 0): 4}, {})
    assert row["lag"] == -6
