"""`isotherm pipeline erase --wait`: waits for the broker, and erases the tail as it is tiered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from isotherm.cli.output import error_console
from isotherm.cli.pipeline_erase_report import LINES_SHOWN_MAX
from isotherm.cli.pipeline_options import (
    progress,
)
from isotherm.clock import Clock
from isotherm.errors import RequestTimedOutError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.remote.erasure.certificate import ErasureCertificate
    from isotherm.spark.jobs.erase_plan import ErasurePlan
    from isotherm.spark.jobs.erase_selection import Selector
    from isotherm.spark.jobs.erase_settings import ErasureSettings
    from isotherm.spark.jobs.erase_tables import OpenedTable
    from isotherm.spark.jobs.erase_tail import WaitingTail
    from isotherm.spark.options import SourceOptions
    from isotherm.types import TopicIdPartition


_LOOK_INTERVAL_S, _LOOK_INTERVAL_MAX_S = 1.0, 30.0


_LOOK_GROWTH = 1.1


def follow_tail(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    certificate: ErasureCertificate,
    plan: ErasurePlan,
    tables: list[OpenedTable],
    waiting: Waiting,
) -> tuple[ErasureCertificate, list[WaitingTail]]:
    """Wait until the broker has published. Then erase what was on brokers only when the run began,
    as it is tiered. Returns what is on brokers only at the time limit. A copy is complete as it
    is."""
    from isotherm.spark.jobs.erase import erase
    from isotherm.spark.jobs.erase_matches import find_matches
    from isotherm.spark.jobs.erase_plan import read_erasure_plan
    from isotherm.spark.jobs.erase_proof import as_before
    from isotherm.spark.jobs.erase_tail import waiting_tails

    if not settings.in_place:
        return certificate, []
    shown: list[str] = []
    while True:
        _wait_for_publication(settings, certificate, waiting)
        tails = waiting_tails(options, certificate, plan.log_ends)
        if not tails:
            return certificate, []
        texts = [str(tail) for tail in tails]
        if texts != shown:
            _print_tails(texts)
            shown = texts
        ready = _wait_for_tails(options, settings, tails, waiting)
        if not ready:
            return certificate, tails
        with progress("erasing from the tail") as show_step:
            part = read_erasure_plan(options, settings, selector).above(ready)
            selector = as_before(selector, certificate)
            matches = find_matches(spark, part, selector, settings)
            certificate, _ = erase(
                spark, part, matches, selector, settings, show_step, tables, certificate
            )
        matches.unpersist()


def _wait_for_publication(
    settings: ErasureSettings, certificate: ErasureCertificate, waiting: Waiting
) -> None:
    from isotherm.spark.jobs.rewrite_run import unpublished_runs

    owners = [partition.partition for partition in certificate.partitions if partition.segments]
    with progress("waiting until the broker has published"):
        while unpublished_runs(settings, owners):
            waiting.once("published")


def _wait_for_tails(
    options: SourceOptions, settings: ErasureSettings, tails: list[WaitingTail], waiting: Waiting
) -> dict[TopicIdPartition, int]:
    """The tails that are ready. None at the time limit."""
    from isotherm.spark.jobs.erase_tail import ready_tails

    with progress("waiting until the tail is tiered"):
        while not (ready := ready_tails(options, settings, tails)):
            if waiting.is_over:
                break
            waiting.once("tiered the tail")
    return ready


def check_tails(tails: list[WaitingTail], wait_s: int) -> None:
    if tails:
        shown = "; ".join(map(str, tails[:LINES_SHOWN_MAX]))
        raise RequestTimedOutError(
            f"records are on brokers only, and were not erased waited_s={wait_s} tails='{shown}'"
            " hint='let the brokers roll these segments, and run the command again'"
        )


def _print_tails(tails: list[str]) -> None:
    for text in tails[:LINES_SHOWN_MAX]:
        error_console().print(f"on brokers only: {text}", markup=False, highlight=False)
    error_console().print(
        "the next record rolls an active segment after segment.ms or at segment.bytes;"
        " local.retention.ms and local.retention.bytes roll it without one"
    )


class Waiting:
    """Waits for a broker's steps, at most `wait_s` in all; 0 is no limit."""

    def __init__(self, clock: Clock, wait_s: int) -> None:
        self.clock = clock
        self._wait_s = wait_s
        self._deadline_s = clock.monotonic_s() + wait_s
        self._interval_s = _LOOK_INTERVAL_S
        self._never = threading.Event()

    @property
    def is_over(self) -> bool:
        return bool(self._wait_s) and self.clock.monotonic_s() >= self._deadline_s

    def once(self, step: str) -> None:
        """Raises RequestTimedOutError after the time limit. The broker goes on all the same."""
        if self.is_over:
            raise RequestTimedOutError(
                f"the broker has not {step} yet waited_s={self._wait_s} hint='--verify proves it"
                " later'"
            )
        self.clock.wait(self._never, self._interval_s)
        self._interval_s = min(self._interval_s * _LOOK_GROWTH, _LOOK_INTERVAL_MAX_S)
