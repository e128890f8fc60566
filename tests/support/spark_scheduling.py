"""Gives the files with Spark to the worker that has a Spark session already.

A session costs its worker a JVM, which loads its classes, compiles its code and keeps a gigabyte.
With files in any order each worker would start one.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Files are named from the folder of the run.
_TESTS: Final = Path(__file__).parents[1]


class SparkOnOneWorker(LoadFileScheduling):  # type: ignore[misc]  # it is not typed
    """The files in their order, but a worker takes those with Spark first if it has a session, and
    last if another worker has one.

    Workers that find only such files help, so that none waits at the end.
    """

    def __init__(self, config: object, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._with_session: set[WorkerController] = set()

    def remove_node(self, node: WorkerController) -> str | None:
        self._with_session.discard(node)
        crashed: str | None = super().remove_node(node)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_file(node)
        if needs_session(file):
            self._with_session.add(node)
        # The superclass takes the first.
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _next_file(self, node: WorkerController) -> str:
        has_turn = not self._with_session or node in self._with_session
        files: list[str] = list(self.workqueue)
        return next((file for file in files if needs_session(file) == has_turn), files[0])


@functools.cache
def needs_session(file: str) -> bool:
    """Whether tests of the file run in the session `spark` of tests/conftest.py."""
    path = _TESTS.parent / file
    if _TESTS / "spark" in path.parents:
        return True
    text = path.read_text()
    return "SparkSession" in text or 'usefixtures("spark")' in text
