"""What cannot be made beforehand does not keep the rest from being made."""

from __future__ import annotations

from oracle.jars import OracleUnavailableError
from tests.support.first_run import make


def test_step_that_fails_is_named_and_the_others_are_carried_out() -> None:
    made = []

    def cannot() -> None:
        raise OracleUnavailableError("command not found: command=mvn")

    steps = (("jars", cannot), ("a suite", lambda: made.append("a suite")))
    assert make(steps) == ["not made yet: jars: command not found: command=mvn"]
    assert made == ["a suite"]
