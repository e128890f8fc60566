"""Shows the progress of a job in a line on a terminal: its step, and Spark's finished tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text


@contextmanager
def shown_progress(terminal: Console, description: str) -> Iterator[Callable[[str], None]]:
    """A line with the elapsed time and the finished tasks. Call the result to name the next step.
    Nothing is shown if `terminal` is not a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TasksColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as line:
        task = line.add_task(description, total=None)
        yield lambda text: line.update(task, description=text)


class TasksColumn(ProgressColumn):
    """The finished tasks of Spark's running stages."""

    # Seconds between two refreshes, since each is a call into Java.
    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        del task
        done, count = tasks_of_running_stages()
        return Text(f"{done} of {count} tasks" if count else "")


def tasks_of_running_stages() -> tuple[int, int]:
    """The numbers of finished tasks and of all tasks.

    Both are 0 before Spark starts and after it stops.
    """
    if "pyspark" not in sys.modules:
        return 0, 0
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return 0, 0
    try:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    except Py4JError:
        # Spark is being stopped.
        return 0, 0
    known = [stage for stage in stages if stage is not None]
    return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)
