"""Access to the golden files, which README.md beside this file describes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from isotherm.record.batch import Record
from oracle.dump_text import DumpedFile, parse_dump

ROOT = Path(__file__).with_name("kafka")


class Golden:
    """The files of the golden folder, and their expected content."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log_dir = root / "log"
        self.tiered_root = root / "remote" / "kafka-tiered-storage"

    def segments(self, topic: str) -> list[Path]:
        """All `.log` files of a topic's partition 0, remote ones first, by base offset."""
        remote = sorted(self.tiered_root.glob(f"{topic}-0-*/*.log"))
        return remote + sorted((self.log_dir / f"{topic}-0").glob("*.log"))

    def records(self, topic: str, *, committed: bool = False) -> list[Record]:
        """The records that librdkafka's consumer returned, in offset order."""
        suffix = ".committed.jsonl" if committed else ".jsonl"
        lines = (self.root / "records" / f"{topic}{suffix}").read_text().splitlines()
        return [_record(*json.loads(line)) for line in lines]

    def dump(self, partition_directory: str) -> dict[str, DumpedFile]:
        """The output of DumpLogSegments, by file name."""
        text = (self.root / "dump" / f"{partition_directory}.txt").read_text()
        return {Path(name).name: file for name, file in parse_dump(text).items()}


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden(ROOT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `partition_directory` with every golden partition, `topic` with those of known
    records.
    """
    if "partition_directory" in metafunc.fixturenames:
        names = sorted(path.name for path in (ROOT / "log").iterdir() if path.is_dir())
        metafunc.parametrize("partition_directory", names)
    if "topic" in metafunc.fixturenames:
        names = sorted(path.stem for path in (ROOT / "records").glob("*.jsonl"))
        metafunc.parametrize("topic", [name for name in names if "." not in name])


def _record(
    _partition: int,
    offset: int,
    timestamp_ms: int,
    key: str | None,
    value: str | None,
    headers: list[tuple[str, str | None]],
) -> Record:
    return Record(
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=_bytes(key),
        value=_bytes(value),
        headers=tuple((name, _bytes(header_value)) for name, header_value in headers),
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
