"""Counts how many of a sample of a module's mutants its own tests kill: `make mutants`.

    python scripts/mutants.py --per-module 10 --seed 1 [path ...]

A mutant is one small change that cosmic-ray makes to a module (`>` to `>=`, a number one higher, a
`not` left out). It is run against the module's tests (mutant_tests.py), in a copy of the sources;
the first failure kills it (mutant_runs.py). Survivors are printed as diffs: either a test is
missing, or the change makes no difference, which a reader must decide. A seed draws the sample;
another seed gives other mutants.
"""

from __future__ import annotations

import argparse
import compileall
import difflib
import functools
import itertools
import json
import os
import py_compile
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from mutant_tests import TESTS

ROOT = Path(__file__).parent.parent
SOURCES = "src/isotherm"
TIMEOUT_S = 240

# Outcomes of mutant_runs.py.
SURVIVED, NO_TEST, IMPORTED = "survived", "no test reaches it", "runs at import"
SAME = "compiles to the same code"

# Annotations are never evaluated, so a mutant of `A | B` there is none. The inserter wants names.
# No class here defines what `==` is for enumerations, the only constants that `is` is used for
# besides None.
LEFT_OUT = (
    "core/ReplaceBinaryOperator_BitOr_",
    "core/ReplaceComparisonOperator_Is_Eq",
    "core/ReplaceComparisonOperator_IsNot_NotEq",
    "core/VariableInserter",
    "core/VariableReplacer",
)


@dataclass(frozen=True)
class Place:
    """The place of a mutation: an operator's name, and the index among its places in the source."""

    operator: str
    occurrence: int

    def mutated(self, source: str) -> str:
        return _mutated(self.operator, self.occurrence, source)


# Parsing a module again takes much longer than most tests of a mutant.
@functools.cache
def _mutated(operator: str, occurrence: int, source: str) -> str:
    return mutate_code(source, get_operator(operator)(), occurrence)


def places_of(source: str) -> list[Place]:
    nodes = list(ast_nodes(get_ast(source)))
    return [
        Place(name, occurrence)
        for name in sorted(operator_names())
        if not name.startswith(LEFT_OUT)
        for occurrence in range(_place_count(name, nodes))
    ]


def _place_count(name: str, nodes: list[Any]) -> int:
    operator = get_operator(name)()
    return sum(1 for node in nodes for _ in operator.mutation_positions(node))


@dataclass(frozen=True)
class Sample:
    """Mutants of one module."""

    module: str
    source: str
    places: list[Place]
    count: int
    """The number of all places of mutations in the module."""

    @classmethod
    def draw(cls, module: str, size: int, rng: random.Random) -> Sample:
        source = (ROOT / SOURCES / module).read_text(encoding="utf-8")
        places = places_of(source)
        shuffled = iter(rng.sample(places, len(places)))
        sound = (place for place in shuffled if _compiles(place.mutated(source)))
        return cls(module, source, list(itertools.islice(sound, size)), len(places))

    def mutants(self) -> list[str]:
        return [place.mutated(self.source) for place in self.places]


def _compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `is` with a number
        try:
            compile(source, "mutant", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True


class Copy:
    """A copy of the sources in which one module at a time is mutated."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        shutil.copytree(ROOT / "src", directory / "src")
        # Python recognizes stale bytecode by the source's size and second, which two mutants may
        # share.
        compileall.compile_dir(
            directory / SOURCES,
            quiet=1,
            force=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )

    def outcomes(self, samples: list[Sample], *, at_import: bool) -> list[list[str]]:
        """The outcome of each mutant: SURVIVED, NO_TEST, SAME, or the test that kills it.

        IMPORTED occurs only without `at_import`.
        """
        answers = self._directory / "outcomes.json"
        modules = [
            {
                "name": f"isotherm.{sample.module.removesuffix('.py').replace('/', '.')}",
                "path": str(self._directory / SOURCES / sample.module),
                "tests": TESTS[sample.module],
                "mutants": sample.mutants(),
            }
            for sample in samples
        ]
        job = {"modules": modules, "outcomes": str(answers)}
        (self._directory / "job.json").write_text(json.dumps(job))
        paths = {path for sample in samples for path in TESTS[sample.module]}
        nested = {each for each in paths for other in paths if each.startswith(f"{other}/")}
        failed = self._run(sorted(paths - nested), None, "-p", "scripts.mutant_runs")
        answer = json.loads(answers.read_text()) if answers.exists() else {"broken": failed}
        if "broken" in answer:
            raise RuntimeError(answer["broken"])
        outcomes: list[list[str]] = answer["outcomes"]
        for sample, found in zip(samples, outcomes, strict=True):
            for index, outcome in enumerate(found):
                if outcome == IMPORTED and at_import:
                    found[index] = self._outcome_of_import(sample, sample.places[index])
        return outcomes

    def _outcome_of_import(self, sample: Sample, place: Place) -> str:
        path = self._directory / SOURCES / sample.module
        path.write_text(place.mutated(sample.source), encoding="utf-8")
        killed = self._run(TESTS[sample.module], TIMEOUT_S, "-x")
        path.write_text(sample.source, encoding="utf-8")
        return killed or SURVIVED

    def _run(self, tests: Sequence[str], timeout_s: float | None, *options: str) -> str:
        """Run the tests; return the last line of output if they fail, else an empty text."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._directory / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MUTANTS_JOB": str(self._directory / "job.json"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._directory / "hypothesis"),
        }
        command = [sys.executable, "-m", "pytest", "-q", *options]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
        command += ["--basetemp", str(self._directory / "tmp"), *tests]
        try:
            done = subprocess.run(  # noqa: S603 - our own tests
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it does not end"
        if done.returncode == 0:
            return ""
        output = (done.stdout + done.stderr).decode(errors="replace")
        return "\n".join(output.splitlines()[-30:])


def report(sample: Sample, outcomes: list[str]) -> tuple[int, int]:
    """Print a module's line and its survivors; return the numbers of killed and of all mutants."""
    tried = [
        (place, outcome)
        for place, outcome in zip(sample.places, outcomes, strict=True)
        if outcome != IMPORTED
    ]
    survivors = [each for each in tried if each[1] in (SURVIVED, NO_TEST, SAME)]
    killed = len(tried) - len(survivors)
    print(f"{sample.module}: {killed} of {len(tried)} killed, {sample.count} in all")
    for place, outcome in survivors:
        before, after = sample.source.splitlines(), place.mutated(sample.source).splitlines()
        print(f"    {outcome}: {place.operator} {place.occurrence}")
        for line in [*difflib.unified_diff(before, after, n=0, lineterm="")][2:]:
            print(f"        {line}")
    sys.stdout.flush()
    return killed, len(tried)


def _part(sample: Sample) -> str:
    return sample.module.split("/")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a sample of mutants of each module.")
    parser.add_argument("modules", nargs="*", help="beginnings of paths below src/isotherm; all")
    parser.add_argument("--per-module", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--functions-only", action="store_true", help="without what runs at import, a run each"
    )
    options = parser.parse_args()
    samples = [
        Sample.draw(module, options.per_module, random.Random(f"{options.seed} {module}"))  # noqa: S311
        for module in TESTS
        if not options.modules or module.startswith(tuple(options.modules))
    ]
    samples.sort(key=_part)
    killed = tried = 0
    is_sound = True
    # Samples with the same tests run together: they share the slowest step, the look at the lines
    # that tests reach.
    for part, of_part in itertools.groupby(samples, key=_part):
        together = list(of_part)
        with tempfile.TemporaryDirectory(prefix="isotherm-mutants-") as directory:
            copy = Copy(Path(directory))
            try:
                found = copy.outcomes(together, at_import=not options.functions_only)
            except RuntimeError as error:
                print(f"{part}: {error}", flush=True)
                is_sound = False
                continue
        for sample, outcomes in zip(together, found, strict=True):
            counts = report(sample, outcomes)
            killed, tried = killed + counts[0], tried + counts[1]
    print(f"{killed} of {tried} killed")
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
