"""The input of a framework, and the checks of its output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

STOP_TIMEOUT_S = 300


def by_key(records: dict[int, list[tuple[str, str]]]) -> dict[str, list[str]]:
    """Values of each key in their order; a key lies in one partition."""
    found: dict[str, list[str]] = {}
    for partition in records.values():
        own: dict[str, list[str]] = defaultdict(list)
        for key, value in partition:
            own[key].append(value)
        assert not own.keys() & found.keys()
        found |= own
    return found


def counted(values: dict[str, list[str]]) -> dict[str, list[str]]:
    """The expected output: each value followed by its number among the values of its key."""
    return {
        key: [f"{value} {count}" for count, value in enumerate(each, start=1)]
        for key, each in values.items()
    }


def check_fed(run: Any) -> None:
    assert by_key(run.committed("input")) == run.fed()


def check_counted(run: Any) -> None:
    assert by_key(run.committed("output")) == counted(run.fed())


def check_counted_again(run: Any) -> None:
    """Check an at-least-once output: after a failure the same values may come again."""
    found = by_key(run.committed("output"))
    assert {key: list(dict.fromkeys(values)) for key, values in found.items()} == counted(run.fed())


def check_copied(run: Any, output: str = "output") -> None:
    assert run.committed(output) == run.committed("input")


def count_in_java(run: Any, pom: str, main: str, *, dies: bool = False) -> None:
    run.create_topics("input", "output")
    state = str(run.folder / "state")
    program = run.start_program(pom, f"{main}.java", main, run.broker.bootstrap_servers, state)
    run.feed_and_kill(run.feed_topic("input"), "output", program if dies else None)
    run.await_committed("output", run.load.records)
    program.end_input(STOP_TIMEOUT_S)
    run.await_tiered("input", "output")


def count_in_python(run: Any, name: str) -> None:
    run.create_topics("input", "output")
    program = run.start_python(name, run.broker.bootstrap_servers, str(run.folder / "state"))
    run.feed_and_kill(run.feed_topic("input"), "output")
    run.await_committed("output", run.load.records)
    program.kill()
    run.await_tiered("input", "output")


def copy(run: Any, output: str, stop: Callable[[], None], dies: Any = None) -> None:
    run.feed_and_kill(run.feed_topic("input"), output, dies)
    run.await_committed(output, run.load.records)
    stop()
    run.await_tiered("input", output)


def copy_by_spring(run: Any) -> None:
    run.create_topics("input", "output")
    program = run.start_program(
        "spring", "SpringCopy.java", "SpringCopy", run.broker.bootstrap_servers
    )
    copy(run, "output", lambda: program.end_input(STOP_TIMEOUT_S), program)
