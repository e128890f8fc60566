"""The runner of transcripts: what it tells apart, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import CorruptRecordError
from tests.support.transcript import Command, Script, TranscriptError


class Calculator:
    def __init__(self) -> None:
        self.total = 0

    def run(self, command: Command) -> str:
        match command.name:
            case "add":
                self.total += sum(int(word) for line in command.inputs() for word in line.words())
                self.total += command.number("more", 0)
                return str(self.total)
            case "list":
                words = command.words()
                return "\n".join([*words, *map(str, range(self.total))])
            case "fail":
                raise CorruptRecordError("injected")
        raise command.unknown()


def check_all(script: Script, *, rewrite: bool = False) -> None:
    for scenario in script.scenarios:
        scenario.check(Calculator(), rewrite=rewrite)


SOUND = """\
# Of the file.
=== sums
add more=1
2
3
----
6

# The state goes on.
list a
----
a
0
1
2
3
4
5

=== another begins anew
fail
----
CorruptRecordError: injected

list
----
"""


def script_of(tmp_path: Path, text: str) -> Script:
    path = tmp_path / "sums.txt"
    path.write_text(text)
    return Script(path)


def test_scenarios_run_alone_and_pass_with_their_outputs(tmp_path: Path) -> None:
    script = script_of(tmp_path, SOUND)
    assert [scenario.name for scenario in script.scenarios] == ["sums", "another begins anew"]
    check_all(script)


@pytest.mark.parametrize(
    ("sound", "wrong", "diff"),
    [
        ("6\n", "7\n", "-7\n+6"),
        ("5\n\n===", "5\n6\n\n===", "-6"),
        ("4\n5\n", "4\n", "+5"),
        ("injected", "other", "-CorruptRecordError: other\n+CorruptRecordError: injected"),
    ],
)
def test_other_output_fails_with_a_diff_and_rewrite_mends_it(
    tmp_path: Path, sound: str, wrong: str, diff: str
) -> None:
    script = script_of(tmp_path, SOUND.replace(sound, wrong, 1))
    assert script.path.read_text() != SOUND
    with pytest.raises(AssertionError) as failed:
        check_all(script)
    assert diff in str(failed.value)
    for scenario in script.scenarios:
        scenario.check(Calculator(), rewrite=True)
    assert script.path.read_text() == SOUND
    check_all(script)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add\n----\n0\n", r"sums\.txt:1: a line before any scenario"),
        ("=== a\n=== b\nlist\n----\n", "sums.txt: 'a' has no command"),
        ("=== a\nadd\n2\n", r"sums\.txt:2: no ---- ends"),
        ("=== a\n\nsubtract\n----\n", r"sums\.txt:3: unknown command 'subtract'"),
        ("=== a\nadd les=1\n----\n0\n", r"sums\.txt:2: add does not use les=1"),
        ("=== a\nadd twice\n----\n0\n", r"sums\.txt:2: add does not use twice"),
        ("=== a\nlist\n5\n----\n", r"sums\.txt:3: list does not use 5"),
        ("=== a\nadd more=1 more=2\n----\n3\n", r"sums\.txt:2: an option twice"),
    ],
)
def test_script_that_cannot_be_meant_names_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(TranscriptError, match=message):
        check_all(script_of(tmp_path, text), rewrite=True)
    assert (tmp_path / "sums.txt").read_text() == text


def test_output_with_a_blank_line_is_refused(tmp_path: Path) -> None:
    class Gap:
        def run(self, command: Command) -> str:
            return "a\n\nb"

    (scenario,) = script_of(tmp_path, "=== a\nlist\n----\na\n").scenarios
    with pytest.raises(TranscriptError, match="blank line"):
        scenario.check(Gap())
