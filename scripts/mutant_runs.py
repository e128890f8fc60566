"""A pytest plug-in of mutants.py. Each mutant runs in a process that is forked from one with all
tests imported.

The first fork runs every test and notes which lines of the modules each of them reaches. A mutant's
fork gives the module's functions their changed code, and runs the tests that reach the changed
statement, the quickest first, until one fails. A change of code that runs at import (a default, a
class constant, a decorator) cannot be made in this way: its outcome is `IMPORTED`.

The job is a JSON file, named by MUTANTS_JOB: for each module its name, its path, the paths of its
tests and the mutants' sources; and the path for the outcomes.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

SURVIVED = "survived"
NO_TEST = "no test reaches it"
IMPORTED = "runs at import"
SAME = "compiles to the same code"
BROKEN = "its tests fail without a mutant"

# A test that takes this much longer than without the mutant counts as endless.
_TIMEOUT_S, _TIMEOUT_FACTOR = 20.0, 10.0
_BASELINE_TIMEOUT_S = 3600.0

# The changed code objects, by qualified name and first line.
Functions = dict[tuple[str, int], CodeType]


@dataclass(frozen=True)
class Module:
    name: str
    path: str
    tests: list[str]
    mutants: list[str]


class MutantRuns:
    """Runs the collected tests once for each mutant, in place of pytest's own loop."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._modules = [Module(**each) for each in job["modules"]]
        self._outcomes = Path(job["outcomes"])
        self._answer = self._outcomes.with_suffix(".answer")
        self._failed: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for module in self._modules:
            importlib.import_module(module.name)
        baseline = self._forked(lambda: self._measured(session.items), _BASELINE_TIMEOUT_S)
        if baseline is None or baseline["failed"]:
            failed = "their process ended, or was late" if baseline is None else baseline["failed"]
            self._outcomes.write_text(json.dumps({"broken": f"{BROKEN}: {failed}"}))
            return True
        _load(baseline["modules"])
        self._tests = {item.nodeid: item for item in session.items}
        self._seconds: dict[str, float] = baseline["seconds"]
        outcomes = [
            self._outcomes_of(module, reaching)
            for module, reaching in zip(self._modules, baseline["reaching"], strict=True)
        ]
        self._outcomes.write_text(json.dumps({"outcomes": outcomes}))
        return True

    def _outcomes_of(self, module: Module, reaching: dict[str, list[str]]) -> list[str]:
        own = {
            int(line): [test for test in tests if test.startswith(tuple(module.tests))]
            for line, tests in reaching.items()
        }
        source = Path(module.path).read_text(encoding="utf-8")
        return [self._outcome(module.path, source, mutated, own) for mutated in module.mutants]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._failed is None:
            self._failed = report.nodeid

    def _outcome(self, path: str, source: str, mutated: str, reaching: dict[int, list[str]]) -> str:
        changed = changed_functions(_compiled(source, path), _compiled(mutated, path))
        if changed is None:
            return IMPORTED
        if not changed:
            return SAME
        chosen = {
            each for line in statement_lines(source, mutated) for each in reaching.get(line, ())
        }
        if not chosen:
            return NO_TEST
        ordered = sorted(chosen, key=lambda each: self._seconds[each])
        seconds = [self._seconds[each] for each in ordered]

        def run() -> str:
            replace_functions(path, changed)
            items = [self._tests[each] for each in ordered]
            # One test that hangs must not take the time of them all.
            for item, taken_s in zip(items, seconds, strict=True):
                limit = pytest.mark.timeout(_TIMEOUT_S + _TIMEOUT_FACTOR * taken_s)
                item.add_marker(limit, append=False)
            return self._run(items) or SURVIVED

        killed_by = self._forked(run, _TIMEOUT_S + _TIMEOUT_FACTOR * sum(seconds))
        return "it does not end" if killed_by is None else killed_by

    def _run(self, items: list[pytest.Item]) -> str | None:
        """The first test that fails."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed is not None:
                break
        return self._failed

    def _measured(self, items: list[pytest.Item]) -> dict[str, Any]:
        """As `_measure`.

        An error outside of tests, such as a package that is not installed, is told as a failure.
        """
        try:
            return self._measure(items)
        except Exception as error:  # noqa: BLE001 - it is told
            return {"failed": f"{type(error).__name__}: {error}"}

    def _measure(self, items: list[pytest.Item]) -> dict[str, Any]:
        import coverage

        loaded = set(sys.modules)
        seconds = {}
        paths = [module.path for module in self._modules]
        tracing = coverage.Coverage(data_file=None, config_file=False, include=paths)
        tracing.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            tracing.switch_context(item.nodeid)
            began_s = time.perf_counter()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.perf_counter() - began_s
        tracing.stop()
        lines = [tracing.get_data().contexts_by_lineno(path) for path in paths]
        return {
            "failed": self._failed,
            "seconds": seconds,
            "reaching": [
                {line: [*filter(None, tests)] for line, tests in each.items()} for each in lines
            ],
            "modules": [name for name in sys.modules if name not in loaded],
        }

    def _forked(self, act: Callable[[], Any], timeout_s: float) -> Any:
        """Call `act` in a forked process; return its result, or None if the process is late or
        dies.
        """
        self._answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                answer = json.dumps(act())
                self._answer.with_suffix(".part").write_text(answer)
                self._answer.with_suffix(".part").rename(self._answer)
            finally:
                os._exit(0)
        ended = os.pidfd_open(child)
        select.select([ended], [], [], timeout_s)
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return json.loads(self._answer.read_text()) if self._answer.exists() else None


def _compiled(source: str, path: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `is` with a number
        return compile(source, path, "exec", dont_inherit=True)


def replace_functions(path: str, changed: Functions) -> None:
    """Give the living functions of a module their changed code."""
    # tests/conftest.py freezes what was imported, and the collector does not list frozen objects.
    gc.unfreeze()
    # By type: isinstance() asks weak proxies for what they refer to, which may be gone.
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == path:
            key = (each.__code__.co_qualname, each.__code__.co_firstlineno)
            if key in changed:
                each.__code__ = changed[key]


def _load(names: list[str]) -> None:
    """Import the modules that tests import when they run: once, instead of in each fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def changed_functions(old: CodeType, new: CodeType) -> Functions | None:
    """The outermost functions with changed code;

    None if code that runs at import has changed too.
    """
    olds, news = list(_nested(old)), list(_nested(new))
    if _itself(old) != _itself(new) or len(olds) != len(news):
        return None
    changed: Functions = {}
    for before, after in zip(olds, news, strict=True):
        if before.co_flags & CO_OPTIMIZED:
            if before != after:
                changed[before.co_qualname, before.co_firstlineno] = after
            continue
        inner = changed_functions(before, after)
        if inner is None:
            return None
        changed |= inner
    return changed


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def _itself(code: CodeType) -> tuple[object, ...]:
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, code.co_names, code.co_name, constants


def statement_lines(source: str, mutated: str) -> set[int]:
    """The lines of the innermost changed statements, without the lines of statements inside
    them.
    """
    before, after = source.splitlines(), mutated.splitlines()
    if len(before) != len(after):
        return set(range(1, len(before) + 1))
    changed = {
        number for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new
    }
    lines: set[int] = set()
    statements = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.stmt)]
    for line in changed:
        around = [
            statement
            for statement in statements
            if statement.lineno <= line <= (statement.end_lineno or 0)
        ]
        lines.add(line)
        if not around:
            continue  # a decorator
        innermost = max(around, key=lambda each: (each.lineno, -(each.end_lineno or 0)))
        body = getattr(innermost, "body", None)
        end = innermost.end_lineno or innermost.lineno
        if body and line < body[0].lineno:
            end = max(body[0].lineno - 1, innermost.lineno)
        lines |= set(range(innermost.lineno, end + 1))
    return lines


def pytest_configure(config: pytest.Config) -> None:
    job = Path(os.environ["MUTANTS_JOB"])
    config.pluginmanager.register(MutantRuns(json.loads(job.read_text())), "mutant-runs")


def pytest_sessionstart() -> None:
    from hypothesis import Phase, settings

    # One failing example is enough: shrinking it takes minutes.
    settings.register_profile(
        "mutants", settings.default, phases=(Phase.explicit, Phase.generate), database=None
    )
    settings.load_profile("mutants")
