"""Write the flights with a Kafka client, and read them back record by record."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from dataset import Flights
from rich.progress import Progress

POLL_EVERY_RECORDS = 2_000
CONSUME_COUNT = 10_000
CONSUME_TIMEOUT_S = 0.5
EMPTY_POLLS_MAX = 60

# partition -> offset -> number of the flight that was written there
Written = dict[int, dict[int, int]]


def create_topic(bootstrap_server: str, topic: str, partitions: int, config: dict) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_server})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


def produce_flights(
    bootstrap_server: str, topic: str, flights: Flights, progress: Progress
) -> Written:
    """Produce all flights; return the offset of each once every record is acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_server,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 200_000,
        }
    )
    written: Written = {}
    failures: list[str] = []
    task = progress.add_task("produce", total=len(flights))

    def delivered(number: int):
        def on_delivery(error, message) -> None:
            if error is not None:
                failures.append(str(error))
            else:
                written.setdefault(message.partition(), {})[message.offset()] = number

        return on_delivery

    rows = zip(flights.keys, flights.values, flights.timestamps_ms, strict=True)
    for number, (key, value, timestamp_ms) in enumerate(rows):
        while True:
            try:
                producer.produce(
                    topic, value, key, timestamp=timestamp_ms, on_delivery=delivered(number)
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
            progress.update(task, completed=number)
    producer.flush()
    progress.update(task, completed=len(flights))
    if failures:
        raise SystemExit(f"{len(failures)} records were not accepted; the first: {failures[0]}")
    return written


def read_back(
    bootstrap_server: str, topic: str, flights: Flights, written: Written, progress: Progress
) -> list[str]:
    """Read all partitions from offset 0; return the differences from the written records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_server,
            "group.id": "demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in written])
    task = progress.add_task("consume", total=len(flights))
    differences: list[str] = []
    seen: set[int] = set()
    open_partitions = set(written)
    empty_polls = 0
    while open_partitions and empty_polls < EMPTY_POLLS_MAX:
        messages = consumer.consume(CONSUME_COUNT, CONSUME_TIMEOUT_S)
        empty_polls = 0 if messages else empty_polls + 1
        for message in messages:
            error = message.error()
            if error is None:
                differences += _differences(message, flights, written, seen)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            else:
                raise KafkaException(error)
        progress.update(task, completed=len(seen))
    consumer.close()
    if len(seen) != len(flights):
        differences.append(f"{len(flights) - len(seen)} records were not read")
    return differences


def _differences(message, flights: Flights, written: Written, seen: set[int]) -> list[str]:
    where = f"partition {message.partition()} offset {message.offset()}"
    number = written[message.partition()].get(message.offset())
    if number is None:
        return [f"{where}: nothing was written there"]
    if number in seen:
        return [f"{where}: read twice"]
    seen.add(number)
    expected = (flights.keys[number], flights.values[number], flights.timestamps_ms[number])
    found = (message.key(), message.value(), message.timestamp()[1])
    return [] if found == expected else [f"{where}: {found} instead of {expected}"]
