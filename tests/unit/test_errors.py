"""The tree of errors in the docstring of its module matches the classes, and each class is used."""

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
# These modules only name the classes. They do not show that anything raises them.
NAMING = {SOURCES / "errors.py", SOURCES / "broker" / "error_mapping.py"}


def tree() -> dict[str, str | None]:
    """The parent of each class, read from the tree in the docstring.

    The depth of a name is the column of the first name of its entry. A line may have several names,
    and an entry may continue on the next line.
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
