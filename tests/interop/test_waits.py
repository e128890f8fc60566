"""What `consume` and `produce` say about a bucket that cannot give, and a disk that is full."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from tests.support.conditions import wait_until
from tests.support.s3_stub import S3Stub, WireFault
from tests.support.wait_notices import without_wait_notices

TIMEOUT_S = 300
RECORDS = 2500
FILE_SIZE_MAX = 200_000
pytestmark = pytest.mark.slow


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as served:
        yield served


def command(broker: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "isotherm.cli.main", *arguments, "-b", broker]


@pytest.mark.parametrize("fault", [WireFault.READ_ONLY, WireFault.HELD])
def test_consume_names_the_offset_that_the_bucket_does_not_give(
    tmp_path: Path, stub: S3Stub, fault: WireFault
) -> None:
    """Once the bucket gives again, all records come."""
    settings = {f"rsm.config.{key}": value for key, value in stub.config.items()}
    with EmbeddedBroker(tmp_path / "broker", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("cold", 1, 1, config=TIERED_TOPIC)])["cold"].result()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 20_000})
        for _ in range(RECORDS):
            producer.produce("cold", os.urandom(500).hex(), partition=0)
        assert producer.flush() == 0
        wait_for_tiering(broker.directory / "log" / "cold-0")
        stub.fail(fault, "GET")
        reading = subprocess.Popen(
            command(broker.bootstrap_servers, "consume", "cold", "--offset", "7"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert reading.stderr is not None
            line = reading.stderr.readline()
            assert re.match(
                r"isotherm: no answer from the broker for \d+ s, still waiting topic=cold"
                r" partitions='0 at 7' hint='.*bucket",
                line,
            ), line
            stub.heal()
            printed, errors = reading.communicate(timeout=TIMEOUT_S)
        finally:
            stub.heal()
            reading.kill()
            reading.wait()
        # On a slow machine it says so again.
        assert (reading.returncode, without_wait_notices(errors)) == (0, "")
        assert len(printed.splitlines()) == RECORDS - 7


def wait_for_tiering(directory: Path) -> None:
    wait_until(
        lambda: min(path.name for path in directory.glob("*.log")) != f"{0:020}.log",
        "the first segment to leave the disk",
    )


def test_produce_to_a_full_disk_ends_and_names_what_is_not_stored(tmp_path: Path) -> None:
    """No file of the broker may be larger than a limit: for the broker that is a disk that is
    full."""
    broker = BrokerProcess(tmp_path / "broker", {})
    try:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result()
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (FILE_SIZE_MAX, FILE_SIZE_MAX))
        lines = [f"{number:05d}{os.urandom(500).hex()}" for number in range(1000)]
        done = subprocess.run(
            [*command(servers, "produce", "t"), "-X", "message.timeout.ms=4000"],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        broker.kill()
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    *refused, total = without_wait_notices(done.stderr).splitlines()
    assert refused
    for line in refused:
        assert re.match(
            r"isotherm: not acknowledged lines?=\d+(-\d+)? reason='.*log of the b", line
        )
    counts = re.fullmatch(
        r"isotherm: not every line is acknowledged lines=1000 acknowledged=(\d+)"
        r" not_acknowledged=(\d+) topic=t",
        total,
    )
    assert counts is not None, total
    assert int(counts[1]) + int(counts[2]) == len(lines)
    # The limit of a file is below what the lines need.
    assert int(counts[1]) < FILE_SIZE_MAX / 500
