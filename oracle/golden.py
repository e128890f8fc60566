"""Make the golden files of tests/golden: bytes that Apache Kafka wrote, and what it reads in them.

    python -m oracle.golden tests/golden/kafka

Replaces the folder by

    log/<topic>-<partition>/   the partition's folder after a clean stop of the broker
    log/*                      checkpoints and meta.properties of the log dir
    remote/                    LocalTieredStorage's folder
    records/<topic>.jsonl      what librdkafka's consumer got (read_uncommitted, then
                               .committed.jsonl: read_committed), one record a line:
                               [partition, offset, timestamp_ms, key, value, [[name, value]]]
                               with keys and values in base64
    dump/<folder>.txt          what Kafka's DumpLogSegments prints of a partition's files
    manifest.json              the command, versions, and sha256 of every other file
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from oracle import golden_topics
from oracle.consumed_records import ConsumedRecord, consume_all
from oracle.jars import kafka_version
from oracle.kafka import EAGER_SETTINGS, KafkaOracle, dump_log_segments, running_kafka

DECODERS = {
    "__remote_log_metadata": "--remote-log-metadata-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__consumer_offsets": "--offsets-decoder",
}
SETTINGS = {
    **EAGER_SETTINGS,
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "200",
}


def make_golden_files(target: Path) -> None:
    """Run Kafka in a temporary folder, fill it, and copy what it left behind to `target`."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "records").mkdir(parents=True)
    (target / "dump").mkdir()
    with tempfile.TemporaryDirectory() as directory:
        with running_kafka(Path(directory), SETTINGS, files_are_kept=True) as kafka:
            golden_topics.write_all(kafka)
        with running_kafka(Path(directory), SETTINGS, files_are_kept=True) as kafka:
            golden_topics.write_again(kafka.bootstrap_server)
            # Held until the broker is down: leaving it would abort the transaction.
            still_open = golden_topics.open_transaction(kafka.bootstrap_server, "transactions")
            _write_records(kafka, target / "records")
        del still_open
        _copy_log_dir(kafka.log_dir, target / "log")
        shutil.copytree(kafka.remote_dir, target / "remote")
    _write_dumps(target)
    _write_manifest(target)


def _write_records(kafka: KafkaOracle, directory: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_server})
    topics = [name for name in admin.list_topics(timeout=300).topics if not name.startswith("__")]
    for topic in topics:
        levels = {"": "read_uncommitted"}
        if topic in {"transactions", "tiered"}:
            levels[".committed"] = "read_committed"
        for suffix, level in levels.items():
            records = consume_all(kafka.bootstrap_server, topic, isolation_level=level)
            lines = (json.dumps(_record_as_json(record)) + "\n" for record in records)
            (directory / f"{topic}{suffix}.jsonl").write_text("".join(lines))


def _record_as_json(record: ConsumedRecord) -> list[object]:
    headers = [[name, _base64(value)] for name, value in record.headers]
    return [
        record.partition,
        record.offset,
        record.timestamp_ms,
        _base64(record.key),
        _base64(record.value),
        headers,
    ]


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _copy_log_dir(log_dir: Path, target: Path) -> None:
    """Copy the files of a stopped broker, but no folder of a partition that got no record."""
    target.mkdir()
    for path in sorted(log_dir.iterdir()):
        if path.is_dir():
            if any(log.stat().st_size for log in path.glob("*.log")):
                shutil.copytree(
                    path, target / path.name, ignore=shutil.ignore_patterns("*.deleted")
                )
        elif path.name not in {".lock", "bootstrap.checkpoint"}:
            shutil.copyfile(path, target / path.name)


def _write_dumps(target: Path) -> None:
    for directory in sorted((target / "log").iterdir()):
        if directory.is_dir():
            decoder = DECODERS.get(directory.name.rsplit("-", 1)[0])
            options = [decoder] if decoder else ["--deep-iteration"]
            suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
            files = sorted(
                path.relative_to(target) for path in directory.iterdir() if path.suffix in suffixes
            )
            text = dump_log_segments(files, *options, cwd=target)
            # It names some files by their full path.
            text = text.replace(f"{target.resolve()}/", "")
            (target / "dump" / f"{directory.name}.txt").write_text(text)


def _write_manifest(target: Path) -> None:
    files = sorted(path for path in target.rglob("*") if path.is_file())
    manifest = {
        "command": "python -m oracle.golden tests/golden/kafka",
        "versions": {
            "kafka": kafka_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            "java": _java_version(),
            "python": platform.python_version(),
        },
        "files": {
            str(path.relative_to(target)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    }
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _java_version() -> str:
    completed = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return completed.stderr.splitlines()[0]


if __name__ == "__main__":
    make_golden_files(Path(sys.argv[1]))
