"""`--recover` of the commands that stage segments: shows, finishes or undoes interrupted runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.output import console, print_rows
from isotherm.cli.pipeline_options import progress

if TYPE_CHECKING:
    from isotherm.spark.jobs.rewrite_run import RewriteSettings
    from isotherm.spark.options import SourceOptions

Recover = Annotated[
    bool,
    typer.Option(
        "--recover",
        help="Show interrupted runs; with --run finish or undo them. No other run may be in"
        " progress.",
    ),
]


def show_recovery(
    settings: RewriteSettings,
    options: SourceOptions,
    *,
    run: bool,
    as_json: bool,
    noun: str = "run",
    hint: str | None = None,
) -> None:
    """Print the step of each interrupted run on the selected topics; with `run` take the steps.
    `noun` is what a run is called, `hint` a line for a plan."""
    from isotherm.spark.jobs import rewrite_run

    with progress(f"checking for interrupted {noun}s"):
        runs = rewrite_run.unfinished_runs(
            settings, lambda partition: options.selects_topic(partition.topic)
        )
        steps = rewrite_run.recover(settings, runs) if run else rewrite_run.plan_recovery(runs)
    if not steps and not as_json:
        console().print(f"no {noun} was interrupted")
        return
    columns = ("topic", "partition", "run", "state", "step")
    print_rows(columns, [step.as_row() for step in steps], as_json=as_json)
    if hint is not None and not as_json and not run:
        console().print(hint)
