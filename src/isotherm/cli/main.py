"""The `isotherm` command. One module per noun; this one only joins them.

Exit codes: 0 done · 1 failed · 2 the command line or configuration is wrong · 3 damage was found.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from isotherm import __version__
from isotherm.cli import config, consume, dump_log, pipeline, produce, remote, serve, topics
from isotherm.cli.output import error_console
from isotherm.cli.pipeline_options import debugging
from isotherm.errors import ConfigError, CorruptDataError, IsothermError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGE = 3

app = typer.Typer(
    # Paragraphs of help are wrapped to the terminal, not where the source wraps them.
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Kafka tiered storage: a broker whose history lives in object storage.",
)
app.command()(serve.serve)
app.add_typer(topics.app, name="topics")
app.command()(produce.produce)
app.command()(consume.consume)
app.command(name="dump-log")(dump_log.dump_log)
app.add_typer(remote.app, name="remote")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isotherm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line; errors that Isotherm raises on purpose become one line."""
    try:
        app()
    except IsothermError as error:
        error_console().print(f"isotherm: {error}", markup=False, style="red", soft_wrap=True)
        for cause in _causes(error):
            error_console().print(f"  caused by: {cause}", markup=False, soft_wrap=True)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe, such as head, has seen enough.
        sys.stderr.close()
        sys.exit(0)


def _causes(error: BaseException) -> list[str]:
    """A line each: libraries tell of themselves over many, which `pipeline --debug` shows."""
    causes = []
    cause = error.__cause__
    while cause is not None:
        text = str(cause) if debugging.get() else str(cause).partition("\n")[0]
        causes.append(f"{type(cause).__name__}: {text}")
        cause = cause.__cause__
    return causes


def _exit_code(error: IsothermError) -> int:
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    return EXIT_DAMAGE if isinstance(error, CorruptDataError) else EXIT_FAILED


if __name__ == "__main__":
    main()
