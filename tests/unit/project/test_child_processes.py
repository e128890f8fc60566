"""Child processes import only what users' processes import.

kio would import hypothesis, which is installed for developers alone.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


def child(program: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


@pytest.mark.slow
def test_a_broker_does_not_import_hypothesis() -> None:
    program = "import sys, isotherm.broker.node; print(*sys.modules)"
    modules = child(program)
    assert "isotherm.broker.node" in modules
    assert "hypothesis" not in modules


@pytest.mark.slow
def test_hypothesis_is_there_for_a_process_that_uses_it_beside_kio() -> None:
    program = (
        "import kio.static.primitive, hypothesis.strategies, sys\n"
        "print(hypothesis.strategies.integers().__class__.__name__, hypothesis.__version__)"
    )
    assert child(program) == child(program.replace("kio.static.primitive, ", ""))
    assert child(program)[0].endswith("Strategy")
