"""librdkafka's own tests, from the source that its JavaScript client carries in npm's registry.

Every number runs in a process of its own, without the tests that need no broker. A failure ends the
process, so that several tests of one number may have no outcome. Quick mode is not for us: it
leaves most of what a test does away, and says that the test has passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from suites.brokers import KAFKA_VERSION, running
from suites.building import TOOLS, run_step
from suites.results import Outcomes, SuiteUnavailableError, of_librdkafka

PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
VERSION = "2.15.1"
TEST_TIMEOUT_S = 300
AT_ONCE = 4

SETTINGS = {
    "num.partitions": "4",
    # Several of its tests start members one after the other and expect one generation of both: with
    # no delay they fail here and on Kafka, as it happens (0102, 0118).
    "group.initial.rebalance.delay.ms": "300",
}

# -L without local tests, -K without those with known issues, -E without those that need socket
# emulation.
_OPTIONS = ("-p1", "-L", "-K", "-E")
# From 0170 on they are of share groups, which are not supported.
_NUMBER = re.compile(r"0(?:0\d\d|1[0-6]\d)(?=-)")


def prepare() -> Path:
    """The folder of the compiled tests. SuiteUnavailableError where the compilers or the source
    cannot be had."""
    folder = TOOLS / f"librdkafka-{VERSION}"
    if (folder / "tests" / "test-runner").exists():
        return folder / "tests"
    missing = [name for name in ("gcc", "g++", "make", "npm") if shutil.which(name) is None]
    if missing:
        raise SuiteUnavailableError(f"librdkafka cannot be built: missing={','.join(missing)}")
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        source = _source(Path(scratch))
        # Its speed is not tried, and the compiler's is.
        run_step(
            [
                "./configure",
                "--disable-optimization",
                "--disable-debug-symbols",
                "--disable-sasl",
                "--disable-curl",
            ],
            source,
        )
        # Without the dynamic library the tests have librdkafka in them.
        for target in ("src/librdkafka.a", "src-cpp/librdkafka++.a"):
            run_step(["make", "-j2", "-C", str(Path(target).parent), Path(target).name], source)
        run_step(["make", "-j2", "-C", "tests", "test-runner"], source)
        source.replace(folder)
    return folder / "tests"


def numbers(tests: Path) -> list[str]:
    return sorted({found[0] for path in tests.iterdir() if (found := _NUMBER.match(path.name))})


@contextlib.contextmanager
def broker(kind: str, directory: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with running(kind, directory, SETTINGS, address, address):
        yield address


def run(
    tests: Path,
    address: str,
    log: Path,
    only: list[str] | None = None,
    group_protocol: str = "classic",
) -> Outcomes:
    """The tests of all numbers, or of those given; what they print goes to `log`."""
    chosen = only or numbers(tests)
    with (
        tempfile.TemporaryDirectory() as folder,
        log.open("w", encoding="utf-8") as output,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        config = Path(folder) / "test.conf"
        config.write_text(f"bootstrap.servers={address}\ntest.timeout.multiplier=2\n")
        outcomes: Outcomes = {}
        for text in pool.map(
            lambda number: _run_number(tests, config, number, group_protocol), chosen
        ):
            output.write(text)
            outcomes |= of_librdkafka(text)
    return outcomes


def _run_number(tests: Path, config: Path, number: str, group_protocol: str) -> str:
    command = [str(tests / "test-runner"), *_OPTIONS]
    process = subprocess.Popen(
        command,
        cwd=config.parent,
        env={
            **os.environ,
            "TESTS": number,
            "TEST_CONSUMER_GROUP_PROTOCOL": group_protocol,
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "RDKAFKA_TEST_CONF": str(config),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=TEST_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def _source(scratch: Path) -> Path:
    """librdkafka's folder of the package, unpacked."""
    packed = run_step(["npm", "pack", "--silent", PACKAGE], scratch, SuiteUnavailableError)
    with tarfile.open(scratch / packed.split()[-1]) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "package" / "deps" / "librdkafka"
