"""The daemon of Python workers: it loads modules once, before it forks, and keeps the order of
sys.path right."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import struct
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path

import numpy.random
import pytest

from isotherm.protocol.tls_stream import receive
from isotherm.spark.worker_daemon import (
    ending_quietly,
    installed_first,
    load,
    modules_of,
    reseed_numpy,
)
from isotherm.types import TopicIdPartition
from tests.spark.conftest import make_tier

GUARD_S = 300

TASK = """
import sys
from isotherm.spark.worker_daemon import load, modules_of
load(modules_of("pyspark.worker"))
loaded = set(sys.modules)
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.rows import full_schema
from isotherm.spark.source import IsothermReader
from isotherm.spark.source_task import read_partition
options = parse_options({"path": sys.argv[1], "subscribe": "flights"})
schema = full_schema(include_headers=True)
[task] = IsothermReader(options, schema).partitions()
loaded.add("isotherm.spark.driver.batch_query")  # of the planning
rows = sum(batch.num_rows for batch in read_partition(options, schema, task))
print(rows, *sorted(name for name in set(sys.modules) - loaded if name.startswith("isotherm.")))
"""


def archive(path: Path, **modules: str) -> str:
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in modules.items():
            opened.writestr(f"pyspark/{name}.py", text)
        opened.writestr("pyspark/tests/test_it.py", "not installed")
    return str(path)


def folder(path: Path, **modules: str) -> str:
    (path / "pyspark").mkdir(parents=True)
    for name, text in modules.items():
        (path / "pyspark" / f"{name}.py").write_text(text)
    return str(path)


def test_zip_comes_after_a_folder_with_the_same_modules(tmp_path: Path) -> None:
    zipped = archive(tmp_path / "pyspark.zip", daemon="a = 1", worker="b = 22")
    installed = folder(tmp_path / "installed", daemon="a = 1", worker="b = 22", more="c")
    assert installed_first(["", zipped, installed, "elsewhere"]) == [
        *("", installed, "elsewhere"),
        zipped,
    ]


@pytest.mark.parametrize("modules", [{"daemon": "a = 1"}, {"daemon": "a = 1", "worker": "other"}])
def test_zip_with_other_modules_stays_first(tmp_path: Path, modules: dict[str, str]) -> None:
    zipped = archive(tmp_path / "pyspark.zip", daemon="a = 1", worker="b = 22")
    path = [zipped, folder(tmp_path / "installed", **modules)]
    assert installed_first(path) == path


def test_zip_that_is_none_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_text("broken")
    path = [str(tmp_path / "broken.zip"), str(tmp_path / "absent.zip"), str(tmp_path)]
    assert installed_first(path) == path


@pytest.mark.slow
def test_task_loads_nothing_that_was_not_loaded_before_the_fork(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    tier.add(TopicIdPartition(uuid.UUID(int=1), "flights", 0), range(40))
    command = [sys.executable, "-c", TASK, tier.folder.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.split() == ["40"]


def test_failed_import_is_printed_and_the_next_module_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sys.modules.pop("this", None)
    load(iter(["isotherm.no_such_module", "this"]))
    assert "No module named 'isotherm.no_such_module'" in capsys.readouterr().err
    assert "this" in sys.modules


def test_planners_load_no_kernels_and_other_workers_nothing_of_ours() -> None:
    planner = list(modules_of("pyspark.sql.worker.plan_data_source_read"))
    assert planner[0] == "pyspark.sql.worker.plan_data_source_read"
    assert not any(name.startswith("isotherm.kernels") for name in planner)
    assert list(modules_of("pyspark.other")) == ["pyspark.other"]


class Ended(BaseException):
    """In place of the end of the process."""


class Output(io.BytesIO):
    def __init__(self, failure: OSError | None) -> None:
        super().__init__()
        self.failure = failure

    def flush(self) -> None:
        if self.failure is not None:
            raise self.failure


CLOSED = [BrokenPipeError(), ConnectionResetError()]


@pytest.mark.parametrize(
    ("raised", "failure", "outcome"),
    [
        *((None, each, Ended) for each in CLOSED),
        *((SystemExit(-1), each, Ended) for each in CLOSED),
        (None, None, None),
        (SystemExit(-1), None, SystemExit),
        # No case of these is that of a query which has its rows.
        (None, OSError(errno.ENOSPC, "no space"), OSError),
        (ValueError("a defect"), BrokenPipeError(), ValueError),
    ],
    ids=str,
)
def test_worker_ends_quietly_only_when_spark_has_closed_its_socket(
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException | None,
    failure: OSError | None,
    outcome: type[BaseException] | None,
) -> None:
    def end(status: int) -> None:
        assert status == 1
        raise Ended

    def work(_infile: object, _outfile: object) -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr("isotherm.spark.worker_daemon.os._exit", end)
    main = ending_quietly(work)
    with pytest.raises(outcome) if outcome else contextlib.nullcontext():
        main(io.BytesIO(), Output(failure))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "is_quiet"), [("isotherm.spark.worker_daemon", True), ("pyspark.daemon", False)]
)
def test_task_that_nobody_reads_any_more_leaves_nothing_on_the_terminal(
    module: str, is_quiet: bool
) -> None:
    """As Spark does it: a worker is asked for, and the connection reset while it works."""
    environment = os.environ | {
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",
    }
    with subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), GUARD_S) as spark:
            (worker,) = struct.unpack(">i", receive(spark, 4))
            spark.sendall(struct.pack(">i6s", 6, b"secret"))
            assert receive(spark, 6) == struct.pack(">i2s", 2, b"ok")
            # Closed with a reset, as by a JVM that has not read all.
            spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Blocks until the worker has ended as well: it has the same standard error.
        while Path(f"/proc/{worker}").exists() and "Z" not in state_of(worker):
            os.sched_yield()
        daemon.stdin.close()
        assert daemon.stderr is not None
        errors = daemon.stderr.read().decode()
    assert ("Traceback" not in errors) is is_quiet, errors


def state_of(process_id: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def test_workers_draw_other_random_numbers() -> None:
    # Forked workers inherit the state of numpy's generator, so without a new seed all draw the
    # same.
    numpy.random.seed(1)
    drawn = numpy.random.random()
    numpy.random.seed(1)
    reseed_numpy()
    assert numpy.random.random() != drawn
