"""Python workers whose socket Spark has closed end without a traceback, and with one for
anything else.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from types import ModuleType

import pytest

from isotherm.client.tls_stream import receive
from isotherm.spark.closed_sockets import be_quiet

GUARD_S = 300
WORKER = "pyspark.worker"
OWN = "isotherm.spark.worker_daemon"
SPARKS = "pyspark.daemon"


@pytest.mark.parametrize(
    ("error", "is_quiet"),
    [
        (BrokenPipeError(), True),
        (ConnectionResetError(), True),
        (OSError("no space left"), False),
        (ConnectionRefusedError(), False),
        (ValueError("a defect"), False),
        (SystemExit(1), False),
    ],
    ids=repr,
)
def test_only_closed_sockets_have_no_traceback(
    capsys: pytest.CaptureFixture[str], error: BaseException, is_quiet: bool
) -> None:
    daemon = ModuleType("daemon")
    exec("import traceback\ndef failed():\n    traceback.print_exc()", daemon.__dict__)
    be_quiet(daemon)
    try:
        raise error
    except BaseException:
        daemon.failed()
    assert ("Traceback" not in capsys.readouterr().err) is is_quiet


def errors_of(program: list[str], environment: dict[str, str]) -> str:
    """What a daemon and a worker print if Spark resets the worker's connection while it works."""
    settings = {
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",
    }
    daemon = subprocess.Popen(
        [sys.executable, *program, WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | settings | environment,
    )
    with daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), GUARD_S) as spark:
            (worker,) = struct.unpack(">i", receive(spark, 4))
            ended = os.pidfd_open(worker)
            spark.sendall(struct.pack(">i6s", 6, b"secret"))
            assert receive(spark, 6) == struct.pack(">i2s", 2, b"ok")
            # Closed with a reset, as by a JVM that has not read all.
            spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.closing(os.fdopen(ended, "rb")):
            assert select.select([ended], [], [], GUARD_S)[0], "the worker has not ended"
        daemon.stdin.close()
        return daemon.stderr.read().decode()


@pytest.mark.slow
def test_worker_that_spark_leaves_prints_nothing_under_either_daemon(tmp_path) -> None:
    """Spark's own daemon is that of planners. Their workers have imported the source when Spark
    leaves them; here the interpreter does at its start, before the daemon runs as the main module.
    """
    assert "BrokenPipeError" in errors_of(["-m", SPARKS], {})
    assert errors_of(["-m", OWN], {}) == ""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "def in_worker():\n"
        "    import isotherm.spark\n"
        "os.register_at_fork(after_in_child=in_worker)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert errors_of(["-m", SPARKS], {"PYTHONPATH": path}) == ""
