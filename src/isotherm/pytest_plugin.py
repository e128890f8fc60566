"""Pytest fixtures that give tests a Kafka broker in their own process: no container, no port to
choose.

    kafka_broker           the broker, one per session (with pytest-xdist: one per worker)
    kafka_topic            the name of a topic that is new for this test
    kafka_topics           a function that creates more of them, with settings
    kafka_broker_settings  server.properties keys; override it in conftest.py

pytest finds the plug-in once Isotherm is installed. Nothing of the broker is imported before a test
asks for it. docs/guides/testing.md shows each fixture at work.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from isotherm.testing.embedded_broker import EmbeddedBroker

_MARKER = "kafka_topic"
_REQUEST_TIMEOUT_S = 30.0
_TOPIC_NAME_MAX = 249
_NOT_IN_TOPIC_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")


class NewTopic(Protocol):
    """Creates a topic that is deleted, in both tiers, at the end of the test; returns its name.

    `tiered` copies closed segments to the remote tier within a second, and then deletes them on
    disk. `config` has topic settings by Kafka's names; they take precedence over those of `tiered`.
    `name` is by default made of the test's name, and new in the session. Raises KafkaException with
    the broker's answer, such as TOPIC_ALREADY_EXISTS for a `name` that is taken. Thread-safe.
    """

    def __call__(
        self,
        partitions: int = 1,
        *,
        tiered: bool = False,
        config: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str: ...


class KafkaBroker:
    """A broker that serves clients. Thread-safe."""

    def __init__(self, embedded: EmbeddedBroker, admin: AdminClient) -> None:
        self.embedded = embedded
        self._admin = admin

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for `bootstrap.servers` of any Kafka client."""
        return self.embedded.bootstrap_servers

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        tiered: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, and return once clients can use it. `tiered` and `config` are as in
        `NewTopic`; the caller deletes the topic. Raises KafkaException with the broker's answer,
        and TimeoutError after 30 seconds without one."""
        from confluent_kafka.admin import NewTopic as Request  # type: ignore[attr-defined]

        from isotherm.testing.embedded_broker import TIERED_TOPIC

        settings = {**(TIERED_TOPIC if tiered else {}), **(config or {})}
        request = Request(name, partitions, 1, config=settings)
        self._admin.create_topics([request])[name].result(_REQUEST_TIMEOUT_S)

    def delete_topic(self, name: str) -> None:
        """Delete a topic in both tiers. No error if there is none. Raises KafkaException with the
        broker's answer. The objects of its remote segments are deleted later."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            self._admin.delete_topics([name])[name].result(_REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(partitions=1, tiered=False, config=None): settings of the `kafka_topic`"
        " fixture",
    )


@pytest.fixture(scope="session")
def kafka_broker_settings() -> Mapping[str, str]:
    """Keys of server.properties for the session's broker: none, unless a conftest.py overrides
    it."""
    return {}


def _embedded_broker() -> type[EmbeddedBroker]:
    """Raise UsageError, with a command to run, if only Isotherm's clients are installed."""
    try:
        from isotherm.testing.embedded_broker import EmbeddedBroker
    except ModuleNotFoundError as error:
        from isotherm.extras import BROKER, missing_extra

        if (missing := missing_extra(error, BROKER)) is None:
            raise
        raise pytest.UsageError(str(missing)) from None
    return EmbeddedBroker


@pytest.fixture(scope="session")
def kafka_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker_settings: Mapping[str, str]
) -> Iterator[KafkaBroker]:
    """A broker for the session, with both tiers in a temporary directory."""
    from confluent_kafka.admin import AdminClient

    with _embedded_broker()(tmp_path_factory.mktemp("kafka"), kafka_broker_settings) as embedded:
        yield KafkaBroker(embedded, AdminClient({"bootstrap.servers": embedded.bootstrap_servers}))


@pytest.fixture(scope="session")
def _kafka_topic_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def kafka_topics(
    request: pytest.FixtureRequest, kafka_broker: KafkaBroker, _kafka_topic_numbers: Iterator[int]
) -> Iterator[NewTopic]:
    """Creates topics for this test. See NewTopic."""
    created = []

    def new_topic(
        partitions: int = 1,
        *,
        tiered: bool = False,
        config: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        topic = name or _topic_name(request.node.name, next(_kafka_topic_numbers))
        kafka_broker.create_topic(topic, partitions, tiered=tiered, config=config)
        created.append(topic)
        return topic

    yield new_topic
    for topic in created:
        kafka_broker.delete_topic(topic)


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_topics: NewTopic) -> str:
    """The name of a topic with one partition, or with what `@pytest.mark.kafka_topic(...)` says."""
    marker = request.node.get_closest_marker(_MARKER)
    return kafka_topics(*marker.args, **marker.kwargs) if marker else kafka_topics()


def _topic_name(test: str, number: int) -> str:
    """The legal characters of the test's name, and a number that no other topic has."""
    end = f"-{number}"
    return _NOT_IN_TOPIC_NAMES.sub("-", test)[: _TOPIC_NAME_MAX - len(end)].rstrip("-") + end
