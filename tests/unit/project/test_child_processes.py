"""Processes that tests start import what those of users import."""

from __future__ import annotations

import subprocess
import sys


def test_a_broker_that_a_test_starts_does_not_import_hypothesis() -> None:
    program = "import sys, isotherm.broker.node; print('hypothesis' in sys.modules)"
    child = [sys.executable, "-c", program]
    assert subprocess.run(child, capture_output=True, text=True, check=True).stdout == "False\n"
