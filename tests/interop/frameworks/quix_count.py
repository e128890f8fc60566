"""StreamsCount.java on Quix Streams: reads "input", counts the records of each key in a store, and
writes "VALUE COUNT" to "output", exactly once. Arguments: bootstrap servers, a folder for state."""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application, State


def count(value: str, state: State) -> str:
    number = state.get("count", 0) + 1
    state.set("count", number)
    return f"{value} {number}"


def main(servers: str, folder: str) -> None:
    application = Application(
        broker_address=servers,
        consumer_group="counter",
        auto_offset_reset="earliest",
        commit_interval=0.3,
        state_dir=folder,
        processing_guarantee="exactly-once",
        auto_create_topics=True,
        # A killed process leaves a member behind, for which the group waits.
        consumer_extra_config={"session.timeout.ms": 6000},
        # A batch has to fit a segment.
        producer_extra_config={"batch.size": 32768},
    )
    texts: dict[str, Any] = {"key_deserializer": "str", "value_deserializer": "str"}
    source = application.topic("input", **texts)
    target = application.topic("output", key_serializer="str", value_serializer="str")
    application.dataframe(source).apply(count, stateful=True).to_topic(target)
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
