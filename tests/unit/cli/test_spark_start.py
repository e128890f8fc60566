"""What a job says before Spark runs: of a master that is not there, and after Ctrl+C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading

import pytest
from py4j.protocol import Py4JNetworkError

from isotherm.cli import spark_interruption
from isotherm.cli.pipeline_options import check_master, said_wait, spark_errors
from isotherm.errors import ConfigError, SparkJobError
from isotherm.testing.local_servers import free_ports
from tests.support.other_clients import without_other_clients

TIMEOUT_S = 300
# A library that swallows each interrupt.
_PROGRAM = """
import time
from isotherm.cli import pipeline
from isotherm.cli.main import COMMANDS, main

def job() -> None:
    print("begun", flush=True)
    while True:
        try:
            time.sleep(3600)
        except KeyboardInterrupt:
            pass

COMMANDS["pipeline"] = lambda: pipeline._checked(job, pipeline._WRITES_NOTHING)
main()
"""


def test_one_master_of_several_is_enough() -> None:
    (closed,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{port}")
    with pytest.raises(SparkJobError, match=r"no Spark master answers .*'Connection refused; Conn"):
        check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{port}")


def test_address_of_a_master_is_checked() -> None:
    with pytest.raises(ConfigError, match="hint='spark://HOST:PORT'"):
        check_master("spark://host:port")
    check_master("local[2]")
    check_master("yarn")


def test_interrupt_that_is_swallowed_ends_the_job_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "pipeline"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    line = "isotherm: interrupted: nothing is written, the same command may be run again\n"
    assert (process.returncode, stderr) == (130, line)


def test_error_of_an_interrupted_call_is_the_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_interruption, "END_S_MAX", TIMEOUT_S)
    running = spark_interruption.Interruption("interrupted")
    before = spark_interruption.interruption.set(running)
    try:
        with pytest.raises(SparkJobError, match="Answer from Java"), spark_errors():
            raise Py4JNetworkError("Answer from Java side is empty")
        running.begin()
        with pytest.raises(KeyboardInterrupt), spark_errors():
            raise Py4JNetworkError("Answer from Java side is empty")
    finally:
        spark_interruption.interruption.reset(before)
        assert running._timer is not None
        running._timer.cancel()


def test_timer_waits_for_the_line_that_the_main_thread_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printing, may_go_on = threading.Event(), threading.Event()
    lines: list[str] = []
    at_the_end: list[list[str]] = []

    class SlowConsole:
        def print(self, line: str, **_: object) -> None:
            printing.set()
            may_go_on.wait(TIMEOUT_S)
            lines.append(line)

    class Said(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            may_go_on.set()
            return super().wait(TIMEOUT_S)

    monkeypatch.setattr(spark_interruption, "error_console", SlowConsole)
    monkeypatch.setattr(spark_interruption, "_java_process", lambda: None)
    monkeypatch.setattr(spark_interruption, "end_starting_java", lambda: None)
    monkeypatch.setattr(spark_interruption.os, "_exit", lambda _: at_the_end.append([*lines]))
    interruption = spark_interruption.Interruption("interrupted")
    interruption._said = Said()
    saying = threading.Thread(target=interruption.say)
    saying.start()
    assert printing.wait(TIMEOUT_S)
    interruption._end()
    may_go_on.set()
    saying.join()
    assert at_the_end == [["interrupted"]]


def test_master_that_takes_connections_and_says_nothing_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = ""
    with said_wait("spark://host:7077", 0.0):
        while not said:
            said = capfd.readouterr().err
    assert "no answer from the Spark master" in said
    assert "master=spark://host:7077" in said
    with said_wait("local[2]", 0.0):
        pass
    assert without_other_clients(capfd.readouterr().err, "") == ""


# In a process of its own: it would end the Java of the tests' session too.
_STARTING = """
import subprocess, sys
from isotherm.cli.spark_interruption import end_starting_java

sleeping = [sys.executable, "-c", "import time; time.sleep(3600)"]
with subprocess.Popen(sleeping) as other, subprocess.Popen([*sleeping, "pyspark-shell"]) as java:
    try:
        end_starting_java()
        print(java.wait(), other.poll())
    finally:
        java.kill()
        other.kill()
"""


def test_java_that_is_only_starting_is_ended() -> None:
    command = [sys.executable, "-c", _STARTING]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert (ended.stdout, ended.stderr) == (f"{-signal.SIGTERM} None\n", "")


# Ctrl+C comes where the program waits.
_INTERRUPTED = """
import os, signal, sys
from isotherm.cli import main, pipeline

# A shell's background jobs ignore it, and so would this program.
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)

class Modules:
    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "isotherm.spark.requirements":
            interrupted()

match sys.argv.pop(1):
    case "command":
        main.COMMANDS["top"] = lambda: interrupted
    case "imports of the command":
        main.COMMANDS["top"] = interrupted
    case "PySpark's import":
        main.COMMANDS["top"] = lambda: pipeline._checked(interrupted, pipeline._WRITES_NOTHING)
        sys.modules.pop("isotherm.spark.requirements", None)
        sys.meta_path.insert(0, Modules)
main.main()
"""


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("command", ["isotherm: interrupted"]),
        ("imports of the command", ["isotherm: interrupted"]),
        (
            "PySpark's import",
            [
                "isotherm: interrupted: nothing is written, the same command may be run again",
            ],
        ),
    ],
)
def test_interrupted_command_says_so_in_one_line(place: str, lines: list[str]) -> None:
    command = [sys.executable, "-c", _INTERRUPTED, place, "top"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert ended.stderr.splitlines() == lines
    assert (ended.returncode, ended.stdout) == (130, "")
