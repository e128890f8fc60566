"""A broker for the demo: `isotherm serve` as a child process, and the contents of its two tiers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 15


class BrokerProcess:
    def __init__(self, data_dir: Path, overrides: dict[str, str]) -> None:
        self.data_dir = data_dir
        self.bootstrap_server = f"127.0.0.1:{_free_port()}"
        self.log_path = data_dir / "broker.log"
        self._overrides = {
            "listeners": f"PLAINTEXT://{self.bootstrap_server}",
            **overrides,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "isotherm.cli.main", "serve", "-d", str(self.data_dir)]
        for name, value in self._overrides.items():
            command += ["--override", f"{name}={value}"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._wait_until_it_answers()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        admin = AdminClient({"bootstrap.servers": self.bootstrap_server, "log_level": 0})
        for _ in range(START_TIMEOUT_S):
            if self._process.poll() is not None:
                break
            try:
                admin.list_topics(timeout=1)
            except KafkaException:
                # Not started yet; the loop is bounded.
                continue
            return
        raise SystemExit(f"the broker did not start; see {self.log_path}")

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "log"

    @property
    def bucket_dir(self) -> Path:
        return self.data_dir / "bucket"


@dataclass(frozen=True)
class TierState:
    """The bytes of a topic in each tier.

    `closed_local` are rolled segments still on the broker's disk.
    """

    local_segments: int
    local_bytes: int
    closed_local: int
    closed_local_bytes: int
    remote_segments: int
    remote_bytes: int
    remote_records: int
    objects: int
    joined: bool

    @property
    def settled(self) -> bool:
        return self.joined and self.closed_local == 0 and self.remote_segments > 0


def tier_state(broker: BrokerProcess, topic: str, partition_count: int) -> TierState:
    """Measure the two folders themselves, not the broker's statements about them."""
    local = [_local_segments(broker.log_dir / f"{topic}-{p}") for p in range(partition_count)]
    manifests = _manifests(broker.bucket_dir, topic)
    joined = all(
        {base for base, _ in segments[-1:]} == {_end_offset(manifests, partition) + 1}
        for partition, segments in enumerate(local)
    )
    closed = [size for segments in local for _, size in segments[:-1]]
    return TierState(
        local_segments=sum(len(segments) for segments in local),
        local_bytes=sum(size for segments in local for _, size in segments),
        closed_local=len(closed),
        closed_local_bytes=sum(closed),
        remote_segments=len(manifests),
        remote_bytes=sum(entry["chunkIndex"]["originalFileSize"] for entry in manifests),
        remote_records=sum(_record_count(entry) for entry in manifests),
        objects=sum(1 for path in broker.bucket_dir.rglob("*") if path.is_file()),
        joined=joined,
    )


def _local_segments(directory: Path) -> list[tuple[int, int]]:
    """(base offset, size) of each segment on disk, ascending."""
    found = []
    for path in sorted(directory.glob("*.log")):
        try:
            found.append((int(path.stem), path.stat().st_size))
        except FileNotFoundError:
            continue  # retention removed it between the listing and the look
    return found


def _manifests(bucket_dir: Path, topic: str) -> list[dict]:
    """The manifests of a topic: each is the commit mark of one remote segment."""
    return [
        json.loads(path.read_bytes()) for path in bucket_dir.glob(f"{topic}-*/*/*.rsm-manifest")
    ]


def _record_count(manifest: dict) -> int:
    segment = manifest["remoteLogSegmentMetadata"]
    return segment["endOffset"] - segment["startOffset"] + 1


def _end_offset(manifests: list[dict], partition: int) -> int:
    ends = [
        entry["remoteLogSegmentMetadata"]["endOffset"]
        for entry in manifests
        if _partition(entry) == partition
    ]
    return max(ends, default=-1)


def _partition(manifest: dict) -> int:
    segment_id = manifest["remoteLogSegmentMetadata"]["remoteLogSegmentId"]
    return segment_id["topicIdPartition"]["topicPartition"]["partition"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
