"""sarama's functional tests, from its Go module: through toxiproxy, to the one broker that is
there.

They are written for five brokers behind the proxies kafka1 to kafka5. Here all five lead to the one
broker, which advertises the first; so a proxy that is cut off cuts off the broker, as there. Their
topics ask for three replicas, and get one.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from suites import go_modules
from suites.brokers import KAFKA_VERSION, running
from suites.building import TOOLS
from suites.results import Outcomes, SuiteUnavailableError, of_go_test
from tests.support.toxiproxy import Toxiproxy, find_toxiproxy

MODULE = "github.com/IBM/sarama"
VERSION = "v1.61.1"
RUN_TIMEOUT_S = 560
REPLACED = {
    "ReplicationFactor: 3": "ReplicationFactor: 1",
    'fmt.Sprintf("127.0.0.1:%d", 29090+i))': "proxy.ListenAddr)",
}
# Those of its own cluster.
SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}

BINARY = f"sarama-{VERSION}.test"
NAMES = f"sarama-{VERSION}.names"
_TEST = re.compile(r"^func (Test\w+)\(t ", re.MULTILINE)


def prepare() -> Path:
    """The compiled tests; the names of the functional ones lie beside them."""
    binary, names = TOOLS / BINARY, TOOLS / NAMES
    if binary.exists() and names.exists():
        return binary
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        kept = go_modules.module_source(Path(scratch), f"{MODULE}@{VERSION}")
        source = go_modules.writable_copy(kept, Path(scratch) / "sarama")
        found = []
        for path in source.glob("functional*_test.go"):
            text = path.read_text(encoding="utf-8")
            found += _TEST.findall(text)
            for old, new in REPLACED.items():
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        names.write_text("\n".join(sorted(found)), encoding="utf-8")
        return go_modules.compile_tests(source, ".", binary, "-tags", "functional")


@contextlib.contextmanager
def broker(kind: str, directory: Path) -> Iterator[str]:
    """The address of toxiproxy's API, with the broker behind each of its proxies."""
    server = find_toxiproxy()
    if server is None:
        raise SuiteUnavailableError("there is no toxiproxy: scripts/toxiproxy.sh install")
    (port,) = free_ports(1)
    proxies = Toxiproxy(server, port, [f"kafka{number}" for number in range(1, 6)])
    advertised = f"127.0.0.1:{proxies.port}"
    with running(kind, directory, SETTINGS, f"127.0.0.1:{port}", advertised), proxies:
        yield proxies.url


def run(binary: Path, toxiproxy: str, log: Path, tests: list[str] | None = None) -> Outcomes:
    """All functional tests, or those named; what they print goes to `log`."""
    names = tests or (TOOLS / NAMES).read_text(encoding="utf-8").split()
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(
            [
                *(str(binary), "-test.v=test2json", f"-test.timeout={RUN_TIMEOUT_S}s"),
                f"-test.run=^({'|'.join(names)})$",
            ],
            cwd=log.parent,
            env={**os.environ, "TOXIPROXY_ADDR": toxiproxy, "KAFKA_VERSION": KAFKA_VERSION},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=RUN_TIMEOUT_S + 30,
        )
    return of_go_test(log.read_text(encoding="utf-8", errors="replace"))
