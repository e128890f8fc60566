"""The `isotherm` command. Each noun has its own module; this one only joins them.

Exit codes: 0 done · 1 failed · 2 the command line or configuration is wrong · 3 damage was found ·
130 interrupted.
"""

from __future__ import annotations

import difflib
import logging
import os
import select
import sys
from collections.abc import Callable
from typing import Annotated, Any, TextIO, TypeAlias

import typer
from typer.core import TyperGroup

from isotherm import __version__
from isotherm.cli.output import error_console
from isotherm.errors import ConfigError, CorruptDataError, IsothermError
from isotherm.extras import BROKER, CONSOLE, SPARK, TIER, missing_extra
from isotherm.printable import LineFormatter, printable, printable_lines

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGE = 3

# A command, or a group of them.
Command: TypeAlias = "Callable[..., None] | typer.Typer"

SETTINGS: dict[str, Any] = {
    # Wrap paragraphs of help to the terminal's width, not at the line ends of the source.
    "rich_markup_mode": "markdown",
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


# A command's module is imported when it runs: a broker starts without the clients and the jobs.


def _serve() -> Command:
    from isotherm.cli.serve import serve

    return serve


def _replica() -> Command:
    from isotherm.cli.replica import replica

    return replica


def _topics() -> Command:
    from isotherm.cli.topics import app as topics

    return topics


def _groups() -> Command:
    from isotherm.cli.groups import app as groups

    return groups


def _produce() -> Command:
    from isotherm.cli.produce import produce

    return produce


def _consume() -> Command:
    from isotherm.cli.consume import consume

    return consume


def _dump_log() -> Command:
    from isotherm.cli.dump_log import dump_log

    return dump_log


def _remote() -> Command:
    from isotherm.cli.remote import app as remote

    return remote


def _pipeline() -> Command:
    from isotherm.cli.pipeline import app as pipeline

    return pipeline


def _storage() -> Command:
    from isotherm.cli.storage import app as storage

    return storage


def _console() -> Command:
    from isotherm.cli.console import console

    return console


def _top() -> Command:
    from isotherm.cli.top import top

    return top


def _config() -> Command:
    from isotherm.cli.config import app as config

    return config


def _doctor() -> Command:
    from isotherm.cli.doctor import doctor

    return doctor


COMMANDS: dict[str, Callable[[], Command]] = {
    "serve": _serve,
    "replica": _replica,
    "topics": _topics,
    "groups": _groups,
    "produce": _produce,
    "consume": _consume,
    "dump-log": _dump_log,
    "remote": _remote,
    "console": _console,
    "top": _top,
    "pipeline": _pipeline,
    "config": _config,
    "storage": _storage,
    "doctor": _doctor,
}


# The extras with the packages that these commands need. isotherm.extras has those of other
# commands.
_EXTRAS = {
    "serve": BROKER,
    "replica": BROKER,
    "config": BROKER,
    "storage": BROKER,
    "dump-log": TIER,
    "remote": TIER,
    "top": TIER,
    "console": CONSOLE,
    "pipeline": SPARK,
}


_ANY_ARGUMENTS: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def _not_installed(missing: ConfigError) -> Callable[[], None]:
    """The replacement of a command whose module cannot be imported.

    Its help names the package to install.
    """

    def command() -> None:
        raise missing

    text = str(missing)
    command.__doc__ = f"{text[0].upper()}{text[1:]}."
    return command


def _is_without_reader(stream: TextIO) -> bool:
    """Whether the stream is a pipe that its reader has closed, as `head` does after its lines."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return False
    watched = select.poll()
    watched.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))


def _plural(name: str) -> str:
    """The command that a user means who is used to another tool's `topic list`."""
    return name if name in COMMANDS else f"{name}s"


class _Commands(TyperGroup):
    """The commands in COMMANDS. Each is imported at its first use."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = missing_extra(error, _EXTRAS.get(ctx.invoked_subcommand))
            if missing is None:
                raise
            raise missing from None
        except KeyboardInterrupt:
            # Typer makes it the status of a command that has ended of itself.
            _say_interrupted()
            raise
        except BrokenPipeError:
            if not _is_without_reader(sys.stdout):
                raise
            # Python flushes standard output when it ends, and would report the pipe once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if _plural(args[0]) not in COMMANDS:
            nearest = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        cmd_name = _plural(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        group = typer.Typer(**SETTINGS)
        try:
            command = COMMANDS[cmd_name]()
        except ModuleNotFoundError as error:
            missing = missing_extra(error, _EXTRAS.get(cmd_name))
            if missing is None:
                raise
            group.command(name=cmd_name, **_ANY_ARGUMENTS)(_not_installed(missing))
            return typer.main.get_group(group).commands[cmd_name]
        if isinstance(command, typer.Typer):
            group.add_typer(command, name=cmd_name)
        else:
            group.command(name=cmd_name)(command)
        return typer.main.get_group(group).commands[cmd_name]


app = typer.Typer(
    cls=_Commands,
    help="Kafka tiered storage: a broker whose history lives in object storage.",
    **SETTINGS,
)


def _print_version(is_set: bool) -> None:
    if is_set:
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
    """Run the command line. An IsothermError becomes one line on standard error."""
    if logging.lastResort is not None:
        # Commands but `serve` set up no logging: warnings of jobs go to standard error.
        logging.lastResort.setFormatter(LineFormatter())
    try:
        status = app(prog_name="isotherm", standalone_mode=False)
    except _UsageError as error:
        _print_usage_error(error)
        sys.exit(EXIT_USAGE)
    except IsothermError as error:
        _print_error(error)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        _say_interrupted()
        sys.exit(130)
    # Typer returns the code of a typer.Exit, and None of a command that has ended.
    sys.exit(status or 0)


def _say_interrupted() -> None:
    """Print the line of an interrupted command, unless its timer has. A job of `pipeline` has a
    line of its own."""
    from isotherm.cli.spark_interruption import Interruption, interruption

    running = interruption.get()
    if running is None:
        running = Interruption("isotherm: interrupted")
        # It may come twice: out of a command, and while Typer ends it.
        interruption.set(running)
    running.say()


# Typer gives the base of its errors no public name.
_UsageError: Any = typer.BadParameter.__base__


def _print_usage_error(error: Any) -> None:
    """Print what is wrong with the command line as one line, with the command whose help says more.
    A command without arguments has printed its help already."""
    text = " ".join(error.format_message().split()).removesuffix(".")
    if text:
        hint = "" if error.ctx is None else f" hint='{error.ctx.command_path} -h'"
        error_console().print(f"isotherm: {printable(text)}{hint}", style="red", soft_wrap=True)


def _print_error(error: IsothermError) -> None:
    """Print an error and its causes as one line. With `pipeline --debug` each cause has its
    own lines."""
    from isotherm.cli.pipeline_options import debugging

    text, causes = printable(str(error)), causes_of(error)
    if causes and not debugging.get():
        text += f" caused_by={printable('; '.join(causes))!r}"
        causes = []
    error_console().print(f"isotherm: {text}", style="red", soft_wrap=True)
    for cause in causes:
        error_console().print(f"  caused by: {printable_lines(cause)}", soft_wrap=True)


def causes_of(error: BaseException) -> list[str]:
    """One line for each cause of the error that says more than the error itself. `pipeline --debug`
    shows whole traces."""
    from isotherm.cli.pipeline_options import debugging

    causes: list[str] = []
    cause = error.__cause__
    while cause is not None:
        text = str(cause) if debugging.get() else str(cause).partition("\n")[0]
        line = f"{type(cause).__name__}: {text}"
        # A library may raise its own error again, and a line that is said has often its words.
        said = [str(error), *causes]
        if not any(words in sentence for words in _own_words(cause, text) for sentence in said):
            causes.append(line)
        cause = cause.__cause__
    return causes


def _own_words(cause: BaseException, text: str) -> list[str]:
    """What an error says beyond the codes and names that its text may have around it."""
    words = [text]
    if isinstance(cause, OSError):
        words.append(cause.strerror or "")
    first: Any = cause.args[0] if cause.args else None
    if hasattr(first, "str"):  # of confluent-kafka
        words.append(str(first.str()))
    return [word for word in words if word]


def _exit_code(error: IsothermError) -> int:
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    return EXIT_DAMAGE if isinstance(error, CorruptDataError) else EXIT_FAILED


if __name__ == "__main__":
    main()
