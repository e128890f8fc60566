"""Connects the command line to a broker, and turns errors into one line."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.client.broker_probe import check_brokers
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import (
    BrokerUnreachableError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 60.0  # as default.api.timeout.ms of Kafka's tools


# Drop librdkafka's log of each connection attempt, since the caller gets an exception.
logger.addHandler(logging.NullHandler())
logger.propagate = False


def client_properties(bootstrap_server: str, extra: Mapping[str, str]) -> dict[str, Any]:
    """The properties of a client. Raises BrokerUnreachableError if no broker answers."""
    properties = librdkafka_properties({"bootstrap.servers": bootstrap_server, **extra})
    check_brokers(properties)
    return {**properties, "logger": logger}


def admin_client(bootstrap_server: str, extra: Mapping[str, str]) -> AdminClient:
    return AdminClient(client_properties(bootstrap_server, extra))


def producer(bootstrap_server: str, extra: Mapping[str, str]) -> Producer:
    return Producer(client_properties(bootstrap_server, extra))


def consumer(bootstrap_server: str, extra: Mapping[str, str]) -> Consumer:
    """A consumer for manual assignment, in no group."""
    defaults = {
        "group.id": "isotherm-cli",
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
    }
    return Consumer(client_properties(bootstrap_server, {**defaults, **extra}))


@contextmanager
def one_line_errors(bootstrap_server: str) -> Iterator[None]:
    """Turn the client library's errors into one of ours that names the broker."""
    try:
        yield
    except KafkaException as error:
        raise BrokerUnreachableError(
            f"{_first_words(error)} bootstrap-server={bootstrap_server}"
        ) from error


def _first_words(error: KafkaException) -> str:
    cause = error.args[0] if error.args else error
    return str(cause.str()) if hasattr(cause, "str") else str(cause)


def wait_for_all(futures: Mapping[str, Future[Any]], kind: str = "topic") -> None:
    """Wait for an admin call on several topics, or groups. Raise the first failure, with the
    name."""
    for name, future in futures.items():
        try:
            future.result(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            code = error.args[0].code() if hasattr(error.args[0], "code") else None
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise UnknownTopicOrPartitionError(f"no such topic topic={name}") from None
            words = _first_words(error)
            # Isotherm's own messages already name the topic, with quotes if it has spaces.
            is_named = f"{kind}={name}" in words.split() or f"{kind}={name!r}" in words
            place = "" if is_named else f" {kind}={name}"
            raise BrokerUnreachableError(f"{words}{place}") from error


def unknown_topic(topic: str, topics: Iterable[str]) -> UnknownTopicOrPartitionError:
    """The error for a topic that does not exist.

    Its hint is the existing topic with the most similar name.
    """
    nearest = difflib.get_close_matches(topic, list(topics), n=1)
    hint = f" nearest={nearest[0]}" if nearest else ""
    return UnknownTopicOrPartitionError(f"no such topic topic={topic}{hint}")


def partitions_of(client: AdminClient | Consumer, topic: str) -> list[TopicPartition]:
    """The partitions of a topic. Raises UnknownTopicOrPartitionError, with the most similar name,
    if the topic does not exist."""
    metadata = client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
    description = metadata.topics.get(topic)
    if description is None or description.error is not None or not description.partitions:
        raise unknown_topic(topic, client.list_topics(timeout=REQUEST_TIMEOUT_S).topics)
    return [TopicPartition(topic, partition) for partition in sorted(description.partitions)]


def check_led(client: AdminClient | Consumer, topic: str, partitions: Collection[int]) -> None:
    """Raise NotLeaderOrFollowerError if a partition has no leader. Without this check the client
    would wait for one for ever."""
    if offline := offline_partitions(client, topic, partitions):
        raise offline_error({topic: offline})


def offline_partitions(
    client: AdminClient | Consumer, topic: str, partitions: Collection[int]
) -> list[int]:
    """Those of the partitions that no broker leads."""
    described = client.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions
    return [partition for partition in sorted(partitions) if described[partition].leader < 0]


def offline_error(by_topic: Mapping[str, Sequence[int]]) -> NotLeaderOrFollowerError:
    places = " ".join(
        f"topic={topic} partitions={list(partitions)}" for topic, partitions in by_topic.items()
    )
    return NotLeaderOrFollowerError(
        f"partitions are offline: no broker leads them {places}"
        " hint='the log of their broker has the reason'"
    )
