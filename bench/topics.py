"""The topics that cases write and read."""

from __future__ import annotations

from collections.abc import Mapping

from bench import load
from bench.servers import Server
from oracle.topics import create_topic, delete_topic


def create(
    server: Server, *, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic, by default with one partition."""
    create_topic(server.bootstrap_server, topic, partitions, dict(config or {}))


def create_filled(
    server: Server,
    *,
    topic: str,
    records: int,
    record_size: int,
    compression: str,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic and fill it by librdkafka."""
    create(server, topic=topic, config=config)
    load.produce(
        server.bootstrap_server,
        topic,
        records=records,
        record_size=record_size,
        compression=compression,
    )


def delete(server: Server, *, topic: str) -> None:
    """Delete a topic with its data in both tiers."""
    delete_topic(server.bootstrap_server, topic)
