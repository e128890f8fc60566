"""Damage has one line in the log, however often its consumers retry."""

from __future__ import annotations

import pytest

from isotherm.remote.reading import damage_log
from isotherm.remote.reading.damage_log import DamageLog


def test_place_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    damage = DamageLog()
    for _ in range(3):
        for place in ("a", "b"):
            damage.log_once(place, f"text of {place}")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", f"remote read is refused: text of {place}") for place in ("a", "b")
    ]


def test_number_of_places_that_are_remembered_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_log, "_REMEMBERED_MAX", 3)
    damage = DamageLog()

    def is_logged(place: str) -> bool:
        caplog.clear()
        damage.log_once(place, "damage")
        return len(caplog.records) == 1

    assert [is_logged(place) for place in "abcabc"] == [True, True, True, False, False, False]
    assert is_logged("d")
    assert not any(is_logged(place) for place in "bcd")
    assert is_logged("a"), "the oldest one was forgotten"
    assert is_logged("b")
