"""The tree of errors at the head of its module is that of the classes, and each class is used."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from isotherm import errors

CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.IsothermError)
}
SOURCES = Path(errors.__file__).parent
# They say that a class exists, not that anything raises it.
NAMING = {SOURCES / "errors.py", SOURCES / "broker" / "error_mapping.py"}


def tree() -> dict[str, str | None]:
    """Parents by name, as the docstring draws them: a name's depth is the column of its line's first.

    Several names stand in one line, and the next may go on with more.
    """
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").split("\n\n")[1].splitlines():
        drawn, *_ = re.split(r"(?<=Error) {2,}", line)
        names = re.findall(r"\w+Error\b", drawn)
        column = line.index(names[0])
        while above and above[-1][0] >= column:
            above.pop()
        for name in names:
            assert name not in parents, f"named twice: {name}"
            parents[name] = above[-1][1] if above else None
        above.append((column, names[-1]))
    return parents


def test_tree_is_that_of_the_classes() -> None:
    expected = {
        name: None if kind is errors.IsothermError else kind.__base__.__name__
        for name, kind in CLASSES.items()
        if kind.__base__ is not None
    }
    assert tree() == expected


def test_every_error_is_raised_or_caught() -> None:
    texts = [path.read_text("utf-8") for path in SOURCES.rglob("*.py") if path not in NAMING]
    words = {word for text in texts for word in re.findall(r"\w+Error\b", text)}
    groups = {kind.__base__.__name__ for kind in CLASSES.values() if kind.__base__ is not None}
    assert CLASSES.keys() <= words | groups
