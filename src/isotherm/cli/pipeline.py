"""`isotherm pipeline`: jobs on Spark over a cluster's metadata and bucket, one file per job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated

import typer

from isotherm.cli import (
    pipeline_audit,
    pipeline_compact,
    pipeline_erase,
    pipeline_load,
    pipeline_options,
    pipeline_project,
    pipeline_rebuild,
    pipeline_repartition,
    pipeline_replay,
    pipeline_scrub,
    pipeline_sweep,
    pipeline_table,
    pipeline_verify,
)
from isotherm.cli.spark_interruption import Interruption, interruption, own_sigint_handler

_AGAIN = "the same command may be run again"
_WRITES_NOTHING = f"nothing is written, {_AGAIN}"
# The jobs, each with what an interrupted run has written.
JOBS: dict[Callable[..., None], str] = {
    pipeline_replay.replay: _WRITES_NOTHING,
    pipeline_project.project: f"finished partitions stay, the next run does the rest: {_AGAIN}",
    pipeline_verify.verify: _WRITES_NOTHING,
    pipeline_audit.audit: _WRITES_NOTHING,
    pipeline_sweep.sweep: f"with --delete, some leftovers are deleted: {_AGAIN}",
    pipeline_scrub.scrub: _WRITES_NOTHING,
    pipeline_rebuild.rebuild: "with --run, the target has a part: empty it before the next run",
    pipeline_compact.compact: "with --run, no reader sees a part: --recover shows what is left",
    pipeline_erase.erase: "with --run, no reader sees a part: --recover shows what is left",
    pipeline_load.load: "with --run, no reader sees a part: --recover shows what is left",
    pipeline_repartition.repartition: "with --run, no reader sees a part: see load --recover",
    pipeline_table.table: f"the table has the last whole commit: {_AGAIN}",
}

app = typer.Typer(no_args_is_help=True)


def _checked(job: Callable[..., None], written: str) -> Callable[..., None]:
    """The job, which first checks its requirements, so that a missing package is an error of one
    line. `written` is what an interrupted run says (see main.py).
    """

    @functools.wraps(job)
    def run(*args: object, **options: object) -> None:
        interruption.set(Interruption(f"isotherm: interrupted: {written}"))
        with own_sigint_handler():
            with pipeline_options.progress("loading PySpark"):
                # Every module of isotherm.spark loads PySpark, even those that only parse options.
                from isotherm.spark.requirements import check_requirements

                check_requirements()
            job(*args, **options)

    return run


for _job, _written in JOBS.items():
    app.command()(_checked(_job, _written))


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
