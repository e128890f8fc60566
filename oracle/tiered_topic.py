"""A topic with closed segments that Kafka itself has moved to LocalTieredStorage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from oracle.consumed_records import ConsumedRecord, consume_all
from oracle.kafka import KafkaOracle
from oracle.topics import SEGMENT_BYTES_MIN, create_topic, wait_until


@dataclass(frozen=True, slots=True)
class TieredTopic:
    """A topic with closed segments in the remote tier only and its tail on the broker's disk.

    `expected` are the records that a consumer reads from the beginning (Kafka serves the history
    from the remote tier), by partition, then offset. `local_start_offsets` is, by partition, the
    first offset still on the broker's disk: everything below it exists in `remote_root` alone.
    """

    name: str
    bootstrap_server: str
    remote_root: Path
    local_start_offsets: dict[int, int]
    expected: tuple[ConsumedRecord, ...]

    @property
    def remote_dir(self) -> Path:
        """Kafka's `rsm.config.dir`: the parent of `remote_root`."""
        return self.remote_root.parent


def make_tiered_topic(
    kafka: KafkaOracle, name: str, *, partitions: int = 2, records: int = 6000
) -> TieredTopic:
    """Create and fill a tiered topic on Kafka, which should run with EAGER_SETTINGS."""
    fill_tiered_topic(kafka.bootstrap_server, kafka.log_dir, name, partitions, records)
    return TieredTopic(
        name=name,
        bootstrap_server=kafka.bootstrap_server,
        remote_root=kafka.tiered_root,
        local_start_offsets={
            partition: _local_base_offsets(kafka.log_dir, name, partition)[0]
            for partition in range(partitions)
        },
        expected=tuple(consume_all(kafka.bootstrap_server, name)),
    )


def fill_tiered_topic(
    bootstrap_server: str, log_dir: Path, name: str, partitions: int, records: int
) -> None:
    """Create a tiered topic, write to it, and wait until the broker has copied all closed segments.

    Values are 1000 bytes, so each partition closes about one segment per thousand records. Keys
    repeat, every 7th key, 11th value and 13th header value is null; headers on every third record;
    the codec changes every 500 records. The last records stay local: the active segment does not
    move. `log_dir` is the broker's, which has Kafka's file layout.
    """
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(SEGMENT_BYTES_MIN),
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "index.interval.bytes": "4096",
        "file.delete.delay.ms": "100",
    }
    create_topic(bootstrap_server, name, partitions, config)
    _produce(bootstrap_server, name, partitions, records)
    wait_until(lambda: fully_tiered(log_dir, name, partitions), f"the tiering of topic={name}")


def fully_tiered(log_dir: Path, topic: str, partitions: int) -> bool:
    """Whether every partition had several segments and has only its active one left on the disk."""
    base_offsets = (_local_base_offsets(log_dir, topic, p) for p in range(partitions))
    return all(len(offsets) == 1 and offsets[0] > 0 for offsets in base_offsets)


def _local_base_offsets(log_dir: Path, topic: str, partition: int) -> list[int]:
    """The base offsets of all segments on the broker's disk, also of those that wait for
    deletion.
    """
    return [int(path.name[:20]) for path in (log_dir / f"{topic}-{partition}").glob("*.log*")]


def _produce(bootstrap_server: str, topic: str, partitions: int, records: int) -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for start in range(0, records, 500):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap_server,
                "compression.type": codecs[start // 500 % len(codecs)],
                "batch.size": 65536,
                "linger.ms": 50,
            }
        )
        for i in range(start, min(start + 500, records)):
            producer.produce(
                topic,
                partition=i % partitions,
                key=None if i % 7 == 0 else f"key-{i % 100}".encode(),
                value=None if i % 11 == 0 else _incompressible(i),
                timestamp=1_700_000_000_000 + i * 10,
                headers=_headers(i),
            )
        if producer.flush(300):
            raise TimeoutError(f"the producer could not send: topic={topic}")


def _headers(i: int) -> list[tuple[str, bytes | None]]:
    if i % 3:
        return []
    return [("i", str(i).encode()), ("h", None if i % 13 == 0 else b"\x00\xff")]


def _incompressible(i: int) -> bytes:
    """1000 bytes that no codec compresses much, so that segments fill equally fast."""
    state, words = i + 1, []
    for _ in range(125):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        words.append((state ^ state >> 29).to_bytes(8, "big"))
    return b"".join(words)
