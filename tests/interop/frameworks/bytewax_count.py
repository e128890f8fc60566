"""StreamsCount.java on Bytewax. Its state is exact; its output may repeat values from after the
last snapshot. Arguments: bootstrap servers, a folder for state."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main


def count(number: int | None, value: bytes) -> tuple[int, bytes]:
    number = (number or 0) + 1
    return number, b"%b %d" % (value, number)


def main(servers: str, folder: str) -> None:
    state = Path(folder)
    if not state.exists():
        state.mkdir()
        init_db_dir(state, 1)
    flow = Dataflow("counter")
    found = op.input("input", flow, KafkaSource([servers], ["input"], batch_size=200))
    keyed = op.map("key", found, lambda message: (message.key.decode(), message.value))
    counted = op.stateful_map("count", keyed, count)
    messages = op.map("tell", counted, lambda each: KafkaSinkMessage(each[0].encode(), each[1]))
    # A batch has to fit a segment.
    settings = {"enable.idempotence": True, "partitioner": "murmur2_random", "batch.size": 32768}
    op.output("output", messages, KafkaSink([servers], "output", settings))
    cli_main(
        flow,
        epoch_interval=timedelta(milliseconds=300),
        recovery_config=RecoveryConfig(state),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
