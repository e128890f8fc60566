"""franz-go against one `isotherm serve`: the test suite of pkg/kgo from its Go module, and our
tests of pkg/kadm (franz_go/admin/admin_test.go), because its own need no broker.

`franz_go/passes.txt` and `franz_go/admin/passes.txt` name the tests that pass, and only grow;
`franz_go/FINDINGS.md` explains the others. Both are built once, into `.tools`. Decision 131 says
why kgo's own tests may run a second time.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from suites import go_modules
from suites.results import SuiteUnavailableError, of_go_test

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.2"
HERE = Path(__file__).parent / "franz_go"
ADMIN = HERE / "admin"
RUN_TIMEOUT_S = 400
# The group and transaction chains move this many through each protocol; their default is 500,000.
RECORDS = 2000
USER, PASSWORD = "alice", "0pen-sesame"


def listed(folder: Path) -> list[str]:
    return (folder / "passes.txt").read_text(encoding="utf-8").split()


def module_source(folder: Path, *modules: str) -> Path:
    """The source of the Go module. Skips the test if the module is not available."""
    try:
        return go_modules.module_source(folder, *modules)
    except SuiteUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled suite of pkg/kgo."""
    binary = go_modules.TOOLS / f"franz-go-{VERSION}.test"
    if binary.exists():
        return binary
    folder = tmp_path_factory.mktemp("franz-go")
    kept = module_source(folder, f"{MODULE}@{VERSION}")
    source = go_modules.writable_copy(kept, folder / "source")
    return go_modules.compile_tests(source, "./pkg/kgo", binary)


@pytest.fixture(scope="module")
def administrator() -> Path:
    """The compiled tests of an administrator on pkg/kadm."""
    text = b"".join((ADMIN / name).read_bytes() for name in ("go.sum", "admin_test.go"))
    binary = go_modules.TOOLS / f"franz-go-admin-{hashlib.sha256(text).hexdigest()[:12]}.test"
    if binary.exists():
        return binary
    module_source(ADMIN)
    return go_modules.compile_tests(ADMIN, ".", binary)


@pytest.fixture(scope="module")
def logins() -> str:
    """The address of the listener with logins."""
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, logins: str) -> Iterator[BrokerProcess]:
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,LOGIN://{logins}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "group.initial.rebalance.delay.ms": "100",
        # Members get a new assignment with their next heartbeat.
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "500",
    }
    started = BrokerProcess(tmp_path_factory.mktemp("franz-go-broker"), settings)
    change = UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode()
    )
    admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
    try:
        admin.alter_user_scram_credentials([change])[USER].result(RUN_TIMEOUT_S)
        yield started
    finally:
        assert started.stop() == 0


@pytest.fixture
def run_listed(broker: BrokerProcess, logins: str, tmp_path: Path) -> Callable[..., None]:
    """Runs the tests that a folder lists; all must pass."""

    def run(binary: Path, folder: Path) -> None:
        ran = subprocess.run(
            [
                *(str(binary), "-test.v", "-test.parallel=16", f"-test.timeout={RUN_TIMEOUT_S}s"),
                f"-test.run=^({'|'.join(listed(folder))})$",
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "KGO_SEEDS": broker.bootstrap_servers,
                "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}",
                "KGO_TEST_SCRAM_SEEDS": logins,
                "KGO_TEST_RF": "1",
                "KGO_TEST_RECORDS": str(RECORDS),
                "KGO_LOG_LEVEL": "none",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S + 30,
        )
        (tmp_path / "franz-go.log").write_text(ran.stdout + ran.stderr, encoding="utf-8")
        results = of_go_test(ran.stdout)
        failed = {name: results.get(name) for name in listed(folder) if results.get(name) != "PASS"}
        assert failed == {}, f"{ran.stdout[-4000:]}\nsee {tmp_path}/franz-go.log"

    return run


@pytest.mark.slow
@pytest.mark.flaky(reruns=1)
@pytest.mark.nightly
def test_listed_tests_of_kgo_pass(suite: Path, run_listed: Callable[..., None]) -> None:
    run_listed(suite, HERE)


def test_listed_tests_of_an_administrator_on_kadm_pass(
    administrator: Path, run_listed: Callable[..., None]
) -> None:
    run_listed(administrator, ADMIN)


def test_every_test_of_the_administrator_is_listed() -> None:
    source = (ADMIN / "admin_test.go").read_text(encoding="utf-8")
    assert listed(ADMIN) == sorted(re.findall(r"^func (Test\w+)\(", source, re.MULTILINE))
