"""GroupReader.java on librdkafka, with the same arguments."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaException


def main(servers: str, topic: str, group: str, protocol: str, path: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
    consumer.subscribe([topic])
    is_committed = True
    with Path(path).open("a") as out:
        while not ends.is_set():
            found = [message for message in consumer.consume(500, 0.2) if message.error() is None]
            if found:
                out.writelines(f"{each.partition()} {each.offset()}\n" for each in found)
                out.flush()
                is_committed = False
            if not is_committed:
                with contextlib.suppress(KafkaException):
                    consumer.commit(asynchronous=False)
                    is_committed = True
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
