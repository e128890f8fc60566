"""`isotherm pipeline`: jobs on Spark over a cluster's metadata and bucket, one file per job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated

import typer

from isotherm.cli import (
    pipeline_audit,
    pipeline_compact,
    pipeline_options,
    pipeline_project,
    pipeline_rebuild,
    pipeline_replay,
    pipeline_scrub,
    pipeline_sweep,
    pipeline_table,
    pipeline_verify,
)

JOBS: tuple[Callable[..., None], ...] = (
    pipeline_replay.replay,
    pipeline_project.project,
    pipeline_verify.verify,
    pipeline_audit.audit,
    pipeline_sweep.sweep,
    pipeline_scrub.scrub,
    pipeline_rebuild.rebuild,
    pipeline_compact.compact,
    pipeline_table.table,
)

app = typer.Typer(no_args_is_help=True)


def _checked(job: Callable[..., None]) -> Callable[..., None]:
    """The job, which first checks its requirements, so that a missing package is an error of one
    line.
    """

    @functools.wraps(job)
    def run(*args: object, **options: object) -> None:
        # Every module of isotherm.spark loads PySpark, even those that only parse options.
        from isotherm.spark.requirements import check_requirements

        check_requirements()
        job(*args, **options)

    return run


for _job in JOBS:
    app.command()(_checked(_job))


@app.callback()
def _pipeline(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            envvar="ISOTHERM_DEBUG",
            help="When Spark fails, show its log and the whole trace, not one line.",
        ),
    ] = False,
) -> None:
    """Jobs on Spark over a cluster's metadata and bucket: inspect, compare, repair.

    They work on topics of Isotherm and of Apache Kafka clusters. They never write to Kafka's
    metadata topic. They change nothing without an explicit option, such as --delete or --run.

    Exit codes: 0 clean · 1 failed · 2 wrong options · 3 damage or a difference was found.
    """
    pipeline_options.debugging.set(debug)
