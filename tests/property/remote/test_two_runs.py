"""Two erasures of one partition at the same time, in every order with two switches between them: a
run that is not refused has erased what it selected, and no other record is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import IsothermError, PolicyViolationError, RemoteResourceNotFoundError
from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.remote.rewriting.journal import RunKind
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.erase_settings import ErasureSettings
from isotherm.spark.jobs.rewrite_run import begin_journals, check_target, end_staging
from isotherm.spark.jobs.rewrite_tasks import StagedPiece
from isotherm.types import Offset
from tests.support.erasure_story import KEEP_OLD_MS, ErasureStory

SEED = 11
STRIDE = 2


class Turn:
    """Lets one of several threads run, up to its next request to the store."""

    def __init__(self) -> None:
        self.local = threading.local()

    def step(self) -> None:
        job = getattr(self.local, "job", None)
        if job is not None:
            job.pause()


class Job:
    """A run of the driver in a thread that stops before each of its requests to the store."""

    def __init__(self, turn: Turn, work: Callable[[], None]) -> None:
        self.error: IsothermError | None = None
        self.is_over = False
        self._steps_left = 0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)

        def run() -> None:
            turn.local.job = self
            self._go.acquire()
            try:
                work()
            except IsothermError as error:
                self.error = error
            finally:
                self.is_over = True
                self._stopped.release()

        threading.Thread(target=run, daemon=True).start()

    def pause(self) -> None:
        if self._steps_left == 0:
            self._stopped.release()
            self._go.acquire()
        self._steps_left -= 1

    def advance(self, steps: int) -> None:
        """Make so many requests, or come to the end."""
        if not self.is_over:
            self._steps_left = steps
            self._go.release()
            self._stopped.acquire()


def erase(story: ErasureStory, run: str, selected: set[Offset]) -> None:
    """The driver's part of a run as in spark/jobs/erase.py, with the tasks in the same thread."""
    settings = ErasureSettings(
        kind=RunKind.ERASURE,
        source=ObjectStoreSettings(url=(story.directory / "bucket").as_uri()),
        target=None,
        now_ms=story.partition.clock.now_ms(),
        fetch_bytes=1000,
        keep_old_ms=KEEP_OLD_MS,
        action=EraseAction.DROP,
    )
    pieces = [
        piece
        for piece in story.pieces()
        if any(piece.start_offset <= offset < piece.end_offset for offset in selected)
    ]
    check_target([story.partition.partition], settings)
    started = begin_journals(story.journals, run, pieces, settings)
    staged = [
        StagedPiece(piece, story.stage_piece(run, piece, selected), 0, 0, 0, 0) for piece in pieces
    ]
    end_staging(story.journals, started, staged, settings)


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> Turn:
    made = Turn()
    for name in ("put", "list_objects"):
        inner = getattr(ObjectClient, name)

        def stepped(self: ObjectClient, *arguments: Any, _inner: Any = inner) -> Any:
            made.step()
            return _inner(self, *arguments)

        monkeypatch.setattr(ObjectClient, name, stepped)
    return made


@pytest.mark.slow
def test_one_of_two_runs_is_refused_or_both_end_right(tmp_path: Path, turn: Turn) -> None:
    numbers = count()
    outcomes = set()
    for first_steps, second_steps in product(range(1, 16, STRIDE), range(1, 16)):
        story = ErasureStory(tmp_path / str(next(numbers)), SEED, batches_min=3, batches_max=4)
        tiered = sorted(story.selected)
        selections = {"one": set(tiered[::2]), "two": set(tiered[1::2])}
        jobs = {run: Job(turn, partial(erase, story, run, selections[run])) for run in selections}
        jobs["one"].advance(first_steps)
        jobs["two"].advance(second_steps)
        jobs["one"].advance(1000)
        story.look()
        jobs["two"].advance(1000)
        story.finish()
        remote = story.remote_contents()
        for run, job in jobs.items():
            assert job.is_over
            if job.error is None:
                assert not selections[run] & remote.keys(), (first_steps, second_steps, run)
            else:
                assert isinstance(job.error, PolicyViolationError | RemoteResourceNotFoundError)
        outcomes.add(tuple(job.error is None for job in jobs.values()))
        story.selected = {
            offset for run, job in jobs.items() if job.error is None for offset in selections[run]
        }
        story.after = {
            offset: content
            for offset, content in story.before.items()
            if offset not in story.selected
        }
        story.check_done()
        story.close()
    assert outcomes >= {(True, False), (False, True)}
