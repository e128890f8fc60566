"""Members of share groups, by confluent-kafka, until standard input ends: a process to be killed.

    python -m tests.support.share_runs.share_worker SERVERS TOPIC LOG NAME GROUP:MODE...

What each consumer gets, sends and is answered goes to LOG, in the lines of `deliveries`. A record's
number says what becomes of it (`acknowledgement`), so that all kinds of acknowledgements occur.
`ShareWorker.java` is the same program by Kafka's own client.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from confluent_kafka import (
    AcknowledgeType,
    KafkaException,
    Message,
    ShareConsumer,
    TopicPartition,
)

from tests.support.conditions import go_on_for

POLL_S = 0.2
COMMIT_TIMEOUT_S = 10.0
HOLD_S = 1.5  # longer than the locks last


PINNED = "pinned"
"""A mode: the first record of a consumer is not acknowledged, those behind it are, one by one. So
the start of the share partition stays, and each acknowledgement is in a write of its own, which no
later one makes up for. It ends when the file of `release_path` is there."""
PINNED_MIN = 12  # records behind the first one


def release_path(log_path: Path) -> Path:
    return log_path.with_suffix(".release")


def acknowledgement(number: int, count: int) -> AcknowledgeType:
    """What becomes of record `number` at its delivery `count`, at the members that say so."""
    if number % 23 == 0:
        return AcknowledgeType.RELEASE
    if number % 11 == 0:
        return AcknowledgeType.RELEASE if count == 1 else AcknowledgeType.REJECT
    if number % 7 == 0 and count == 1:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


def is_held(number: int, count: int) -> bool:
    """Whether a member keeps the record until its lock has ended."""
    return number % 199 == 0 and count == 1


class Worker:
    """One consumer, in a thread."""

    def __init__(
        self,
        servers: str,
        topic: str,
        name: str,
        group_id: str,
        mode: str,
        log: TextIO,
        release: Path,
    ) -> None:
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": group_id,
            "share.acknowledgement.mode": "implicit" if mode == "implicit" else "explicit",
            "max.poll.records": 50,
            "log_level": 0,
        }
        self._topic = topic
        self._name = f"{name}-{group_id}"
        self._is_explicit = mode != "implicit"
        self._pins = mode == PINNED
        self._release = release
        self._log = log
        self._write([self._line("start", f"of {group_id}")])

    def run(self, stopping: threading.Event) -> None:
        consumer = ShareConsumer(self._settings)
        if not self._is_explicit:
            consumer.set_acknowledgement_commit_callback(self._on_answer)
        consumer.subscribe([self._topic])
        messages: list[Message] = []
        while not stopping.is_set():
            self._accept_all(messages)
            messages = self._poll(consumer)
            self._write(
                self._line("got", f"{_place(message)} {_count(message)} {_number(message)}")
                for message in messages
            )
            if self._pins and len(messages) > PINNED_MIN:
                self._acknowledge_behind_first(consumer, messages, stopping)
                self._pins = False
            elif self._is_explicit and messages:
                self._acknowledge(consumer, messages)
        self._accept_all(messages)
        consumer.close()

    def _poll(self, consumer: ShareConsumer) -> list[Message]:
        # librdkafka passes errors on that it recovers from.
        try:
            return [each for each in consumer.poll(POLL_S) if each.error() is None]
        except KafkaException as error:
            print(self._name, error, file=sys.stderr, flush=True)
            return []

    def _accept_all(self, messages: Iterable[Message]) -> None:
        """The next poll, or the close, accepts them."""
        if not self._is_explicit:
            self._write(self._line("sent", f"{_place(message)} ACCEPT") for message in messages)

    def _acknowledge_behind_first(
        self, consumer: ShareConsumer, messages: Sequence[Message], stopping: threading.Event
    ) -> None:
        first, *others = sorted(messages, key=lambda each: (each.partition(), each.offset()))
        for other in others:
            is_released = _number(other) % 3 == 0 and _count(other) == 1
            self._acknowledge_as(
                consumer, other, AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT
            )
        while not stopping.is_set() and not self._release.exists():
            go_on_for(POLL_S)
        self._acknowledge_as(consumer, first, AcknowledgeType.ACCEPT)

    def _acknowledge_as(
        self, consumer: ShareConsumer, message: Message, kind: AcknowledgeType
    ) -> None:
        consumer.acknowledge(message, kind)
        self._write([self._line("sent", f"{_place(message)} {kind.name}")])
        self._commit(consumer, [message])

    def _acknowledge(self, consumer: ShareConsumer, messages: Iterable[Message]) -> None:
        if any(is_held(_number(message), _count(message)) for message in messages):
            go_on_for(HOLD_S)
        lines = []
        for message in messages:
            kind = acknowledgement(_number(message), _count(message))
            consumer.acknowledge(message, kind)
            lines.append(self._line("sent", f"{_place(message)} {kind.name}"))
        self._write(lines)
        self._commit(consumer, messages)

    def _commit(self, consumer: ShareConsumer, messages: Iterable[Message]) -> None:
        """Commit the acknowledgements of these messages, and log the answers."""
        try:
            answers = consumer.commit_sync(COMMIT_TIMEOUT_S)
        except KafkaException as error:
            print(self._name, error, file=sys.stderr, flush=True)
            return
        outcomes = {str(each.partition): error for each, error in answers.items()}
        places = [_place(message) for message in messages]
        self._write(
            self._answered(place, outcomes[place.split()[0]])
            for place in places
            if place.split()[0] in outcomes
        )

    def _on_answer(
        self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None
    ) -> None:
        self._write(
            self._answered(f"{partition.partition} {offset}", error)
            for partition, each in offsets.items()
            for offset in each
        )

    def _answered(self, place: str, error: KafkaException | None) -> str:
        outcome = "ok" if error is None else str(error.args[0].name())
        return self._line("answered", f"{place} {outcome}")

    def _line(self, kind: str, detail: str) -> str:
        return f"{kind} {self._name} {time.monotonic_ns()} {detail}\n"

    def _write(self, lines: Iterable[str]) -> None:
        text = "".join(lines)
        if text:
            # One call: whole lines are with the kernel, whatever becomes of this process.
            self._log.write(text)
            self._log.flush()


def _place(message: Message) -> str:
    return f"{message.partition()} {message.offset()}"


def _number(message: Message) -> int:
    value = message.value()
    assert value is not None, "records of the run are numbered"
    return int(value)


def _count(message: Message) -> int:
    count = message.delivery_count()
    assert count is not None, "the group counts deliveries"
    return count


def main(arguments: list[str]) -> None:
    servers, topic, log_path, name, *groups = arguments
    stopping = threading.Event()
    with Path(log_path).open("a") as log:
        threads = []
        for group in groups:
            group_id, mode = group.split(":")
            release = release_path(Path(log_path))
            worker = Worker(servers, topic, name, group_id, mode, log, release)
            threads.append(threading.Thread(target=worker.run, args=(stopping,)))
        for thread in threads:
            thread.start()
        sys.stdin.read()
        stopping.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
