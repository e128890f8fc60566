"""The texts that operators and users read: errors, hints, log lines, help, configuration docs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = ("src", "examples")
SUFFIXES = (".py", ".js", ".html")

# What a text may not say -> what it says instead, in words that a reader understands at once.
BETTER_FORMS = {
    r"\b(is|are|was|were) looked (at|for|into)\b": "name the work: reading, checking, listing",
    r"\blooked at\b": "checked, read or examined",
    r"cross the network as": "are sent in clear text",
    r"\banswers nothing\b": "the response lacks the thing",
    r"\bforgets? (events|records)\b": "events or records expire",
    r"\bby far\b": "well below, well above, or the figure",
    r"\bpassed over\b": "ignored, or skipped",
    r"\bleft alone\b": "ignored, or not touched",
    r"\bnot to be had\b": "not available",
    r"\bgone or going\b": "deleted or being deleted",
    r"\band there is none\b": "which is not installed, or which is missing",
    r"\bfor want of\b": "because of a missing thing, named",
    r"\b(was|were|been) asked for\b|\basked_for=": "requested, request=",
    r"\basks? for another\b": "requests",
    r"\bis not heard of\b": "sends no heartbeat",
    r"\bgo(es)? by the\b": "depends on, uses",
    r"\bstands? still\b": "stops until",
    r"\bheld up\b": "blocked, or delayed",
    r"\bgiven up reason": "aborted",
    r"\bis not there\b": "is missing, does not exist",
    r"\bno such type of\b": "unknown ... type",
    r"\bwithout (a )?meaning\b|\bhas no meaning\b": "unknown, or invalid",
    r"\bbeside the (store|broker|cluster)'s\b": "from the store's",
    r"\bimpossible (size|length) size=": "an invalid size",
    r"\ballotted\b": "allocated",
    r"\bas it would have it\b|\bwould have it\b": "in this layout, by this rule",
    r"\bwins over all\b": "overrides all other sources",
    r"\bheeds\b": "uses",
    r"\bas many .*\bas it may\b": "its maximum",
    r"\bwent away\b|\bgoes away\b": "is deleted, or is missing",
    r"\bolder records than\b": "records older than",
    r"\bis finished later\b": "is not finished, and when it is tried again",
    r"\b(is|are) not served\b": "is not supported, as Kafka says",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and text of each string that a program can print. An expression in it is {}."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    tree = ast.parse(content)
    # Docstrings and the strings behind attributes explain the source, and are not printed.
    unprinted = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node not in unprinted:
                yield node.lineno, node.value
        else:
            waiting.extend(ast.iter_child_nodes(node))


_ANY = re.compile("|".join(BETTER_FORMS))


def faults(path: Path) -> list[str]:
    """A line for each text with a form that has a better one: the place, and the better form."""
    return [
        f"{path}:{line}: {text.strip()!r}: {found[0]!r}, better: {better}"
        for line, text in texts(path)
        if _ANY.search(text)
        for pattern, better in BETTER_FORMS.items()
        if (found := re.search(pattern, text))
    ]


def test_texts_say_what_is_meant() -> None:
    files = [file for place in PLACES for file in sorted((ROOT / place).rglob("*"))]
    assert not [fault for file in files if file.suffix in SUFFIXES for fault in faults(file)]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""Doc."""\nraise X(\n    f"topic={topic}"\n    " is looked at"\n)\n', 3),
        ('logger.warning("key is passed over key=%s", key)\n', 1),
        ('HELP = {"a": ("the broker goes" " by the clock")}\n', 1),
    ],
)
def test_fault_names_file_and_line(tmp_path: Path, source: str, line: int) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    (fault,) = [each.partition(", better: ")[0] for each in faults(path)][:1]
    assert fault.startswith(f"{path}:{line}: ")


def test_docstring_is_no_printed_text(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""What is looked at."""\nx = 1\n"""It is passed over."""\n', encoding="utf-8")
    assert not faults(path)
