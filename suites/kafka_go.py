"""kafka-go's tests, from its Go module. They know one broker, at localhost:9092 with node id 1."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from suites import go_modules
from suites.brokers import KAFKA_VERSION, running
from suites.building import TOOLS
from suites.results import Outcomes, of_go_test

MODULE = "github.com/segmentio/kafka-go"
VERSION = "v0.4.51"
RUN_TIMEOUT_S = 560

# The name that the tests know becomes an address of this checkout alone: the port stays as it is.
_DIGEST = hashlib.sha256(os.fsencode(TOOLS)).digest()
HOST = ".".join(["127", *(str(1 + byte % 250) for byte in _DIGEST[:3])])
ADDRESS = f"{HOST}:9092"
REPLACED = {
    '"localhost:9092"': f'"{ADDRESS}"',
    'Host: "localhost", Port: 9092': f'Host: "{HOST}", Port: 9092',
    'TCP("localhost")': f'TCP("{HOST}")',
    '"tcp", "127.0.0.1:9092"': f'"tcp", "{ADDRESS}"',
    '"example.com": {"127.0.0.1': f'"example.com": {{"{HOST}',
    '!= "127.0.0.1"': f'!= "{HOST}"',
    'Host != "localhost"': f'Host != "{HOST}"',
}
SETTINGS = {"message.max.bytes": "200000000"}

# These call a helper of the suite that dereferences a nil pointer, which ends the whole run.
PANICS = (
    "TestReaderConsumerGroup/verify_offset_committed",
    "TestReaderConsumerGroup/consumer_group_commits_on_close",
)


def prepare() -> Path:
    """The folder with the compiled tests and the fixtures that they read."""
    folder = TOOLS / f"kafka-go-{VERSION}-{HOST}"
    if folder.exists():
        return folder
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        kept = go_modules.module_source(Path(scratch), f"{MODULE}@{VERSION}")
        source = go_modules.writable_copy(kept, Path(scratch) / "kafka-go")
        for path in source.glob("*_test.go"):
            text = path.read_text(encoding="utf-8")
            for old, new in REPLACED.items():
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        # Its go.sum lacks what only its tests use.
        go_modules.compile_tests(source, ".", source / "kafka-go.test", "-mod=mod")
        source.replace(folder)
    return folder


@contextlib.contextmanager
def broker(kind: str, directory: Path) -> Iterator[str]:
    with running(kind, directory, SETTINGS, ADDRESS, ADDRESS):
        yield ADDRESS


def run(folder: Path, _address: str, log: Path, tests: list[str] | None = None) -> Outcomes:
    """All tests, or those named; what they print goes to `log`."""
    pattern = f"^({'|'.join(tests)})$" if tests else "."
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(
            [
                *("./kafka-go.test", "-test.v=test2json", f"-test.timeout={RUN_TIMEOUT_S}s"),
                f"-test.run={pattern}",
                f"-test.skip={'|'.join(PANICS)}",
            ],
            cwd=folder,
            env={**os.environ, "KAFKA_VERSION": KAFKA_VERSION, "KAFKA_SKIP_NETTEST": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=RUN_TIMEOUT_S + 30,
        )
    # Two cases have the address in their names: the lists are the same in every checkout.
    text = log.read_text(encoding="utf-8", errors="replace").replace(HOST, "localhost")
    return of_go_test(text)
