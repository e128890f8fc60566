"""A flood of lines of one kind is bounded, counted, and hides no line of another kind."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from isotherm.cli.line_limit import LINES_BURST, LINES_PER_S, LineLimit
from isotherm.testing.sim_clock import SimClock


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def handler(stream: io.StringIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    return handler


@pytest.fixture
def logger(handler: logging.Handler) -> Iterator[logging.Logger]:
    logger = logging.getLogger("test_line_limit")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def fail_logins(logger: logging.Logger, count: int) -> None:
    for number in range(count):
        logger.info("authentication failed client=%d", number)


def test_flood_of_one_kind_is_bounded_and_counted(
    handler: logging.Handler, logger: logging.Logger, stream: io.StringIO, clock: SimClock
) -> None:
    limit = LineLimit(handler, clock)
    fail_logins(logger, LINES_BURST + 5)
    logger.warning("disk is full")
    limit.report()
    limit.report()
    lines = stream.getvalue().splitlines()
    disk, left_out = lines[LINES_BURST:]
    assert disk == "WARNING test_line_limit: disk is full"
    assert left_out == (
        "INFO test_line_limit: similar lines are left out count=5 option=--log-lines-per-s"
        f" last='authentication failed client={LINES_BURST + 4}'"
    )


def test_lines_over_time_have_a_rate(
    handler: logging.Handler, logger: logging.Logger, stream: io.StringIO, clock: SimClock
) -> None:
    LineLimit(handler, clock)
    fail_logins(logger, LINES_BURST)
    clock.advance(3000)
    fail_logins(logger, LINES_BURST)
    assert len(stream.getvalue().splitlines()) == LINES_BURST + 3 * LINES_PER_S
    clock.advance(1000 * 3600)
    fail_logins(logger, 2 * LINES_BURST)
    assert len(stream.getvalue().splitlines()) == 2 * LINES_BURST + 3 * LINES_PER_S


def test_operator_may_have_all_lines(
    handler: logging.Handler, logger: logging.Logger, stream: io.StringIO, clock: SimClock
) -> None:
    limit = LineLimit(handler, clock, per_s=0)
    fail_logins(logger, 2 * LINES_BURST)
    limit.report()
    assert len(stream.getvalue().splitlines()) == 2 * LINES_BURST


def test_lines_for_debugging_are_not_bounded(
    handler: logging.Handler, logger: logging.Logger, stream: io.StringIO, clock: SimClock
) -> None:
    LineLimit(handler, clock)
    for number in range(2 * LINES_BURST):
        logger.debug("request number=%d", number)
    assert len(stream.getvalue().splitlines()) == 2 * LINES_BURST


def test_lines_left_out_are_reported_without_a_further_line(
    handler: logging.Handler, logger: logging.Logger, stream: io.StringIO, clock: SimClock
) -> None:
    """The thread reports; the simulated clock advances by itself with each wait."""

    class Stopped(Exception):
        pass

    class Reported(LineLimit):
        def report(self) -> None:
            super().report()
            raise Stopped

    limit = Reported(handler, SimClock(auto_advance=True))
    fail_logins(logger, LINES_BURST + 1)
    with pytest.raises(Stopped):
        limit._report_always()
    assert "left out count=1 " in stream.getvalue().splitlines()[-1]
