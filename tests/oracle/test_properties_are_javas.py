"""A server.properties has the same meaning as in Kafka:

Java reads the same entries from any text.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from isotherm.config.layers import parse_properties
from isotherm.errors import ConfigError

PROGRAM = Path(__file__).parent / "LoadProperties.java"
TIMEOUT_S = 300
TEXTS = 5_000
# Characters with a meaning in the format, more often than others.
_PARTS = (
    *("\\", "\\", "\n", "\n", "\r", "\r\n", "=", ":", " ", "\t", "\f", "#", "!"),
    *("\\u0041", "\\u00e4", "\\u12", "\\t", "\\n", "\\:", "\\=", "\\\n  ", "\\\r\n"),
    *("a", "b.c", "7", "\u00e4", "\u2028", "\x0b", "\x1c", "\x85", "\xa0", "\x00", "\U0001f600"),
)


# Continued lines with nothing before the backslash are not compared: Java then skips a comment in
# the next line, and has an entry without a name if there is none.
_NOTHING_CONTINUED = re.compile(r"(?:^|[\r\n])[ \t\f]*\\(?:[\r\n]|$)")


def texts() -> list[str]:
    source = random.Random(7)
    made = ("".join(source.choices(_PARTS, k=source.randint(1, 24))) for _ in range(TEXTS))
    return [text for text in made if not _NOTHING_CONTINUED.search(text)]


def entries_or_none(text: str) -> dict[str, str] | None:
    try:
        return parse_properties(text)
    except ConfigError:
        return None


def entries_of_java(line: str) -> dict[str, str] | None:
    if line == "refused":
        return None
    pairs = (entry.split(":") for entry in line.split())
    return {b64decode(name).decode(): b64decode(value).decode() for name, value in pairs}


@pytest.mark.oracle
def test_java_reads_the_same_entries() -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("Java is not installed: apt-get install openjdk-17-jdk-headless")
    asked = texts()
    lines = "".join(b64encode(text.encode()).decode() + "\n" for text in asked)
    command = [java, "-XX:TieredStopAtLevel=1", str(PROGRAM)]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    answers = [entries_of_java(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked)
    assert None in answers
    assert [
        (text, ours, javas)
        for text, javas in zip(asked, answers, strict=True)
        if (ours := entries_or_none(text)) != javas
    ] == []
