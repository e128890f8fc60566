"""StreamsCount.java on Faust, exactly once. Arguments: bootstrap servers, a folder for state."""

from __future__ import annotations

import sys

import faust

PARTITIONS = 2


def main(servers: str, folder: str) -> None:
    app = faust.App(
        "counter",
        broker=f"kafka://{servers}",
        store="memory://",
        datadir=folder,
        key_serializer="raw",
        value_serializer="raw",
        topic_partitions=PARTITIONS,
        topic_replication_factor=1,
        topic_allow_declare=True,
        processing_guarantee="exactly_once",
        broker_commit_interval=0.3,
        # A killed process leaves a member behind, for which the group waits.
        broker_session_timeout=6,
        broker_heartbeat_interval=2,
    )
    source = app.topic("input", key_type=bytes, value_type=bytes, partitions=PARTITIONS)
    target = app.topic("output", key_type=bytes, value_type=bytes, partitions=PARTITIONS)
    counts = app.Table("counts", default=int, partitions=PARTITIONS, key_type=str, value_type=int)

    @app.agent(source)
    async def count(stream: faust.StreamT[bytes]) -> None:
        async for key, value in stream.items():
            name = key.decode()
            counts[name] += 1
            await target.send(key=key, value=b"%b %d" % (value, counts[name]))

    sys.argv = ["faust", "worker", "--loglevel", "info", "--without-web"]
    app.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
