"""Patterns in Java's syntax that are read mean the same as to java.util.regex.

Patterns are put together at random from the constructs that `isotherm.patterns` names. What Java
refuses is refused. What RE2 lacks is refused too, and then is not compared.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from isotherm.errors import InvalidRegularExpressionError
from isotherm.patterns import JavaPattern, JavaReplacement
from oracle.kafka import run_tool

PROGRAM = Path(__file__).with_name("JavaPatterns.java")
COUNT = 10_000
ATOMS = (
    *("a", "b", "K", "k", "s", "x", "-", "_", ",", "=", "é", "É", "ß", "}", "]", " ", "\n"),
    *(r"\.", r"\-", r"\\", r"\$", r"\t", r"\n", r"\e", r"\x61", r"\x{6b}", r"\u212a"),
    *(".", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"\pL", r"\p{Lu}", r"\P{L}", r"\p{Alpha}"),
    *(r"\p{Punct}", r"\p{Space}", r"\P{Alnum}", r"\p{Cntrl}", "[abc]", "[^a-c]", "[k-]", "[-k]"),
    *(r"[\w-.]", r"[^\s]", r"[\d\S]", r"[+--]", "[a-b-c]", "[a^]", "[J-L]", "[Z-a]", "[^K]"),
    *("[é-ü]", r"[\p{Punct}k]", r"[\x{212a}]", r"\Qa.b\E", r"\Qk\E"),
    # What RE2 lacks, or Java.
    *("[a-c&&b]", "[a[bc]]", r"\v", r"\h", "(?=a)", "(?<!a)", "(?>a)", r"\p{javaLowerCase}", "{"),
)
PLACES = ("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z")
COUNTS = (
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "{2}",
    "{1,}",
    "{0,2}",
    "*?",
    "+?",
    "??",
    "{1,2}?",
    "*+",
    "{,2}",
)
GROUPS = ("({})", "(?:{})", "(?i:{})", "(?s:{})", "(?-i:{})", "(?i-s:{})", "(?<n>{})")
FLAGS = ("(?i)", "(?s)", "(?m)", "(?is)", "(?-i)")
CHARACTERS = "aabbccKkksSx-_,.=éÉß}] \t\v\r\u212a\u017f\u2028\x1b$\\A"
REPLACEMENTS = ("", "-", "$0", "<$1>", "$2$1", "$12", r"\$1", "$", "\\", "$x", "a$0b$0")


class Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def pattern(self, depth: int = 0) -> str:
        choose = self._rng.choice
        parts = []
        for _ in range(self._rng.randint(1, 4)):
            kind = self._rng.random()
            if kind < 0.12:
                parts.append(choose(PLACES))
            elif kind < 0.18:
                parts.append(choose(FLAGS))
            elif kind < 0.26:
                parts.append("|")
            elif kind < 0.45 and depth < 3:
                parts.append(choose(GROUPS).format(self.pattern(depth + 1)) + choose(COUNTS))
            else:
                parts.append(choose(ATOMS) + choose(COUNTS))
        return "".join(parts)

    def text(self) -> str:
        # Line breaks at the end are left out: Java's $ is before them.
        text = "".join(self._rng.choices(CHARACTERS + "\n", k=self._rng.randint(0, 5)))
        if self._rng.random() < 0.5:
            text = "".join(filter(str.isascii, text))
        return text.rstrip("\n\r\u2028\u0085")


def ours(pattern: str, replacement: str, text: str) -> str | None:
    try:
        compiled = JavaPattern(pattern)
    except InvalidRegularExpressionError:
        return None
    try:
        parsed = JavaReplacement(replacement, compiled.groups)
    except InvalidRegularExpressionError:
        replaced = "invalid"
    else:
        replaced = hexadecimal(compiled.replaced(text, parsed, is_first_only=False))
    matches, found = compiled.matches(text), compiled.is_in(text)
    return f"{str(matches).lower()} {str(found).lower()} {replaced}"


def hexadecimal(text: str) -> str:
    return "x" + text.encode().hex()


@pytest.mark.oracle
def test_what_is_read_means_the_same(kafka_tools: Path) -> None:
    maker = Maker(random.Random(1))
    cases = [
        (maker.pattern(), random.Random(index).choice(REPLACEMENTS), maker.text())
        for index in range(COUNT)
    ]
    lines = [" ".join(map(hexadecimal, case)) for case in cases]
    answers = run_tool(str(PROGRAM), stdin="\n".join(lines) + "\n").splitlines()
    assert len(answers) == len(cases)
    kinds: Counter[str] = Counter()
    differing = []
    for case, theirs in zip(cases, answers, strict=True):
        answer = ours(*case)
        if answer is None:
            kinds["refused"] += 1
            continue
        kinds[answer.partition(" x")[0]] += 1
        # A replacement that names no group is refused at once; Java refuses it only for a match.
        is_comparable = not answer.endswith("invalid") and not (
            # Words have letters of all alphabets before Java 19.
            re.search(r"\\[bB]", case[0]) and not case[2].isascii()
        )
        if answer != theirs and is_comparable:
            differing.append((*case, answer, theirs))
    assert not differing, (len(differing), *differing[:20])
    assert kinds["true true"] > COUNT / 50, kinds
    assert kinds["refused"] < COUNT * 0.6, kinds
