"""Ctrl+C in the middle of a Spark job: one line, and the exit code of a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.spark_classes import java_options

TURNS_MAX = 6000
TIMEOUT_S = 300
# The tasks would take an hour. The first one leaves a file.
_PROGRAM = """
import sys, time
from pathlib import Path
from isotherm.cli import pipeline
from isotherm.cli.main import COMMANDS, main
from isotherm.cli.pipeline_options import SparkOptions, spark_session

java_options, begun = sys.argv.pop(), sys.argv.pop()

def wait(_):
    Path(begun).touch()
    time.sleep(3600)

def job() -> None:
    java = f"spark.driver.extraJavaOptions={java_options}"
    with spark_session(SparkOptions(master="local[2]", spark_config=[java])) as spark:
        spark.sparkContext.parallelize(range(4), 4).foreach(wait)

COMMANDS["pipeline"] = lambda: pipeline._checked(job, pipeline._WRITES_NOTHING)
main()
"""


def test_interrupted_job_says_so_in_one_line(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "pipeline", str(begun), java_options()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        pause = threading.Event()
        for _ in range(TURNS_MAX):
            if begun.exists() or process.poll() is not None:
                break
            pause.wait(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert begun.exists(), stderr
    # Java itself prints a line at its start.
    lines = [line for line in stderr.splitlines() if not line.startswith("WARNING: Using incub")]
    assert lines == ["isotherm: interrupted: nothing is written, the same command may be run again"]
    assert (process.returncode, stdout) == (130, "")
    assert list(tmp_path.iterdir()) == [begun]
