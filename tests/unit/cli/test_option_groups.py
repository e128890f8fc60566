"""A group of options is one parameter of a command, and single options for its user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from isotherm.cli.option_groups import with_groups


@dataclass(frozen=True)
class Place:
    host: Annotated[str, typer.Option("--host", help="Where.")] = "here"
    ports: Annotated[list[int] | None, typer.Option("--port", help="Which.")] = None


Count = Annotated[int, typer.Option("--count", help="How many.")]


def run(command: Any, *arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command("run")(command)
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "TERM": "dumb"})
    return found.exit_code, found.output


def by_groups(*, name: str, place: Place, count: Count = 1) -> None:
    """A command."""
    print(name, place, count)


def by_options(
    name: str,
    host: Annotated[str, typer.Option("--host", help="Where.")] = "here",
    ports: Annotated[list[int] | None, typer.Option("--port", help="Which.")] = None,
    count: Count = 1,
) -> None:
    """A command."""
    print(name, Place(host, ports), count)


def test_help_is_that_of_single_options() -> None:
    code, shown = run(with_groups(by_groups), "--help")
    assert code == 0
    assert "--port" in shown
    assert shown == run(by_options, "--help")[1]


def test_command_gets_what_was_given_and_the_defaults_of_the_rest() -> None:
    for arguments in (
        ["a"],
        ["a", "--host", "there"],
        ["--count", "3", "a", "--port", "1", "--port", "2"],
    ):
        code, shown = run(with_groups(by_groups), *arguments)
        assert (code, shown) == run(by_options, *arguments)
        assert code == 0


def test_wrong_option_of_a_group_is_refused() -> None:
    code, shown = run(with_groups(by_groups), "a", "--port", "high")
    assert code == 2
    assert "--port" in shown
