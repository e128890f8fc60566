"""`isotherm pipeline`: jobs on Spark over a cluster's metadata and bucket, one file per job."""

from __future__ import annotations

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
    pipeline_verify,
)

app = typer.Typer(no_args_is_help=True)
app.command()(pipeline_replay.replay)
app.command()(pipeline_project.project)
app.command()(pipeline_verify.verify)
app.command()(pipeline_audit.audit)
app.command()(pipeline_sweep.sweep)
app.command()(pipeline_scrub.scrub)
app.command()(pipeline_rebuild.rebuild)
app.command()(pipeline_compact.compact)


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
    """Jobs on Spark over a cluster's metadata and bucket: look, compare, mend.

    They work on Isotherm's topics and on those of real Kafka clusters, whose metadata topic they
    never write to. Nothing is changed without an option that says so, such as --delete or --run.

    Exit codes: 0 clean · 1 failed · 2 wrong options · 3 damage or a difference was found.
    """
    pipeline_options.debugging.set(debug)
