"""Transcripts: scripts of commands with the expected output of each, in a text file.

    === the name of a scenario
    # A comment.
    command word option=value
    a line of input
    ----
    a line of expected output

A blank line ends the output. Each scenario is a test of its own and begins anew. A suite says what
its commands mean: `Interpreter`. `pytest --rewrite` writes the outputs of the code into the files,
for a review as a diff.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from isotherm.errors import IsothermError

_SCENARIO, _OUTPUT = "=== ", "----"


class TranscriptError(Exception):
    """The script is wrong, not the code under test. Names the file and the line."""


@dataclass
class Command:
    """One command, or a line of its input. The interpreter uses up what it takes; a rest is an
    error of the script."""

    name: str
    place: str
    _words: list[str]
    _options: dict[str, str]
    _inputs: list[Command] = field(default_factory=list)

    @classmethod
    def parse(cls, name: str, arguments: str, place: str) -> Command:
        words = arguments.split()
        options = [word.partition("=") for word in words if "=" in word]
        texts = {option: text for option, _, text in options}
        if len(texts) < len(options):
            raise TranscriptError(f"{place}: an option twice")
        return cls(name, place, [word for word in words if "=" not in word], texts)

    def add_input(self, line: str, place: str) -> None:
        self._inputs.append(Command.parse(self.name, line, place))

    def words(self) -> list[str]:
        """The arguments without `=`."""
        words, self._words = self._words, []
        return words

    def flag(self, word: str) -> bool:
        """Whether the argument is there."""
        if word not in self._words:
            return False
        self._words.remove(word)
        return True

    def text(self, option: str, default: str) -> str:
        return self._options.pop(option, default)

    def number(self, option: str, default: int) -> int:
        return int(self._options.pop(option, default))

    def texts(self) -> dict[str, str]:
        """All options that are left, by name."""
        options, self._options = self._options, {}
        return options

    def inputs(self) -> list[Command]:
        """The lines of input, each like a command without a name."""
        return self._inputs

    def unknown(self) -> TranscriptError:
        return TranscriptError(f"{self.place}: unknown command {self.name!r}")

    def check_used_up(self) -> None:
        rest = [*self._words, *(f"{name}={text}" for name, text in self._options.items())]
        if rest:
            raise TranscriptError(f"{self.place}: {self.name} does not use {', '.join(rest)}")
        for each in self._inputs:
            each.check_used_up()


def pairs(text: str) -> list[tuple[int, int]]:
    """The pairs of numbers in `1:2,3:4`."""
    found = [part.split(":") for part in text.split(",") if part]
    return [(int(first), int(second)) for first, second in found]


class Interpreter(Protocol):
    def run(self, command: Command) -> str:
        """Execute the command; return its output.

        An IsothermError is output too. Raises `command.unknown()` for a name without a meaning.
        """


@dataclass
class _Step:
    """A command with its input: the indexes of its lines in the file, without `end`."""

    start: int
    output_start: int
    end: int


@dataclass
class Scenario:
    name: str
    script: Script
    steps: list[_Step] = field(default_factory=list)

    def check(self, interpreter: Interpreter, *, rewrite: bool = False) -> None:
        """Run all commands. Fail with a diff of all outputs, or `rewrite` the file."""
        outputs = [self.script.output_of(step, interpreter) for step in self.steps]
        after = self.script.with_outputs(self, outputs)
        if rewrite:
            self.script.rewrite(after)
            return
        diff = difflib.unified_diff(self.script.lines, after, "expected", "output", lineterm="")
        assert after == self.script.lines, "\n".join(
            [f"{self.script.path.name}: {self.name}", *diff]
        )


class Script:
    """A file of scenarios. Raises TranscriptError for lines that belong to no command."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text(encoding="utf-8").split("\n")
        self.scenarios = self._parsed()

    def _parsed(self) -> list[Scenario]:
        scenarios: list[Scenario] = []
        number = 0
        while number < len(self.lines):
            line = self.lines[number]
            if line.startswith(_SCENARIO):
                scenarios.append(Scenario(line.removeprefix(_SCENARIO), self))
            elif line and not line.startswith("#"):
                if not scenarios:
                    raise TranscriptError(f"{self._place(number)}: a line before any scenario")
                scenarios[-1].steps.append(self._step(number))
                number = scenarios[-1].steps[-1].end
                continue
            number += 1
        for scenario in scenarios:
            if not scenario.steps:
                raise TranscriptError(f"{self.path.name}: {scenario.name!r} has no command")
        return scenarios

    def _step(self, start: int) -> _Step:
        end = start
        while end < len(self.lines) and self.lines[end]:
            end += 1
        of_step = self.lines[start:end]
        if _OUTPUT not in of_step:
            raise TranscriptError(f"{self._place(start)}: no {_OUTPUT} ends the command")
        return _Step(start, start + of_step.index(_OUTPUT) + 1, end)

    def _place(self, number: int) -> str:
        return f"{self.path.name}:{number + 1}"

    def output_of(self, step: _Step, interpreter: Interpreter) -> list[str]:
        name, _, arguments = self.lines[step.start].partition(" ")
        command = Command.parse(name, arguments, self._place(step.start))
        for number in range(step.start + 1, step.output_start - 1):
            command.add_input(self.lines[number], self._place(number))
        try:
            output = interpreter.run(command)
        except IsothermError as error:
            output = f"{type(error).__name__}: {error}"
        command.check_used_up()
        lines = output.split("\n") if output else []
        if not all(lines):
            raise TranscriptError(f"{command.place}: {name} has a blank line in its output")
        return lines

    def with_outputs(self, scenario: Scenario, outputs: list[list[str]]) -> list[str]:
        """The lines of the file if the scenario's commands have these outputs."""
        lines = [*self.lines]
        for step, output in zip(reversed(scenario.steps), reversed(outputs), strict=True):
            lines[step.output_start : step.end] = output
        return lines

    def rewrite(self, lines: list[str]) -> None:
        if lines != self.lines:
            self.path.write_text("\n".join(lines), encoding="utf-8")
            self.lines = lines
            for scenario, after in zip(self.scenarios, self._parsed(), strict=True):
                scenario.steps = after.steps
