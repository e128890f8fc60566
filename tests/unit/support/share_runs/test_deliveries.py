"""Each promise of a share group, and a log that breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.share_runs.deliveries import Produced, anomalies, deliveries, read_lines

PRODUCED = {(0, 7): Produced(70, 90)}
GOOD = """
start a 100 of group
start other 100 of another
got other 105 0 7 9 99
got a 110 0 7 1 70
sent a 120 0 7 RELEASE
answered a 130 0 7 ok
got a 140 0 7 2 70
sent a 150 0 7 ACCEPT
answered a 160 0 7 ok
"""


def found(tmp_path: Path, text: str, count_max: int = 3, kills_ns: Sequence[int] = ()) -> list[str]:
    path = tmp_path / "log"
    path.write_text(text.lstrip())
    return anomalies(deliveries(read_lines([path]), "group"), PRODUCED, count_max, kills_ns)


def test_a_record_that_is_released_and_accepted_is_no_anomaly(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD) == []


def test_part_of_a_line_is_left_out(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD + "got a 170 0 ") == []


def test_a_buffered_record_is_no_anomaly_though_a_late_acknowledgement_succeeds(
    tmp_path: Path,
) -> None:
    late = """start b 100 of group
got b 170 0 7 1 70
sent b 180 0 7 ACCEPT
answered b 190 0 7 ok
"""
    assert found(tmp_path, GOOD + late) == []


FALLEN = (
    GOOD.partition("got a 140")[0]
    + """start b 140 of group
got b 150 0 7 1 70
sent b 160 0 7 ACCEPT
answered b 170 0 7 ok
"""
)
AGAIN = GOOD + "start b 100 of group\ngot b 170 0 7 3 70\n"


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("never delivered", "start a 100 of group\n"),
        ("another value", GOOD.replace(" 70", " 71")),
        ("delivery count", GOOD.replace("7 2 70", "7 4 70")),
        ("gone", GOOD.replace("ACCEPT", "RELEASE")),
        ("delivered again", AGAIN),
        ("the delivery count fell", FALLEN),
        ("later consumer", GOOD + "start b 170 of group\ngot b 180 0 7 1 70\n"),
    ],
)
def test_a_broken_promise_is_an_anomaly(tmp_path: Path, expected: str, text: str) -> None:
    wrong = found(tmp_path, text)
    assert len(wrong) == 1
    assert expected in wrong[0]
    assert "partition=0 offset=7" in wrong[0]


def test_a_record_that_was_not_produced_is_an_anomaly(tmp_path: Path) -> None:
    (wrong,) = found(tmp_path, GOOD + "got a 170 0 8 1 80\n")
    assert wrong.startswith("was not produced partition=0 offset=8")


def test_a_killed_broker_forgets_counts_of_records_that_members_have(tmp_path: Path) -> None:
    assert found(tmp_path, AGAIN, kills_ns=[145]) == []


def test_a_record_ends_at_the_limit_and_a_killed_process_may_take_a_delivery(
    tmp_path: Path,
) -> None:
    released = GOOD.replace("ACCEPT", "RELEASE")
    assert found(tmp_path, released, count_max=2) == []
    assert found(tmp_path, released, kills_ns=[145]) == []
