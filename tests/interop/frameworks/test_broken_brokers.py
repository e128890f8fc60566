"""Each check of a framework's output fails on a broker with a fault. Without this, a check that
never fails would look like a correct broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.frameworks.exactness import (
    check_copied,
    check_counted,
    check_counted_again,
    check_fed,
    copy_by_spring,
    count_in_java,
    count_in_python,
)

Work = Callable[[Any], None]
Check = Callable[[Any], None]


def streams(run: Any) -> None:
    count_in_java(run, "kafka", "StreamsCount", dies=True)


def bytewax(run: Any) -> None:
    count_in_python(run, "bytewax")


def quix(run: Any) -> None:
    count_in_python(run, "quix")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "work", "checks"),
    [
        pytest.param(
            "hide_aborted_transactions", streams, [check_counted], marks=pytest.mark.nightly
        ),
        pytest.param(
            "hide_aborted_transactions", copy_by_spring, [check_copied], marks=pytest.mark.nightly
        ),
        pytest.param(
            "lose_transactional_offsets", copy_by_spring, [check_copied], marks=pytest.mark.nightly
        ),
        pytest.param(
            "double_a_batch", copy_by_spring, [check_fed, check_copied], marks=pytest.mark.nightly
        ),
        pytest.param(
            "lose_transactional_offsets", streams, [check_counted], marks=pytest.mark.soak
        ),
        pytest.param("lose_transactional_offsets", quix, [check_counted], marks=pytest.mark.soak),
        pytest.param(
            "double_a_batch", bytewax, [check_fed, check_counted_again], marks=pytest.mark.soak
        ),
    ],
)
def test_check_fails_on_a_broken_broker(broken_run: Any, work: Work, checks: list[Check]) -> None:
    work(broken_run)
    for check in checks:
        with pytest.raises(AssertionError):
            check(broken_run)
