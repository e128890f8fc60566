"""Broken requests of every served API and version hurt no other client and cause no unforeseen
error.

Requests come from real clients (`recorded_requests.txt`, made by oracle/record_requests.py),
converted to every version and to a topic that exists; others are made from the schemas
(tests/support/request_maker.py). Then they are damaged: cut, bytes changed, bytes inserted, a
length made huge. The seed is in the test's name.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from isotherm.broker.apis import refused
from isotherm.broker.apis.api_register import SERVED
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.request_maker import RECORDED, REQUESTS, TOPIC, RequestMaker

TIMEOUT_S = 300
MUTANTS = 5
# No client sends these requests.
BETWEEN_BROKERS = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
MEMORY_GROWTH_MAX = 192 * 1024 * 1024


def connect(broker: EmbeddedBroker) -> socket.socket:
    _, host, port = broker.node.endpoints[0]
    return socket.create_connection((host, port), timeout=TIMEOUT_S)


def attack(broker: EmbeddedBroker, frame: bytes, meanwhile: Callable[[], None]) -> bool:
    """Send a frame and hang up after `meanwhile`. Return whether an answer came before."""
    answer_size = 0
    with contextlib.closing(connect(broker)) as client, contextlib.suppress(ConnectionError):
        client.sendall(struct.pack(">i", len(frame)) + frame)
        meanwhile()
        client.shutdown(socket.SHUT_WR)
        while received := client.recv(1 << 16):
            answer_size += len(received)
    return answer_size > 0


@pytest.fixture(scope="module")
def topic_id(broker: EmbeddedBroker) -> uuid.UUID:
    services = broker.node.services
    (created,) = services.control_executor.submit(
        lambda: services.controller.create_topics([NewTopic(name=TOPIC, num_partitions=2)])
    ).result()
    assert created.error is None
    return services.metadata.image.topics_by_name[TOPIC].topic_id


@pytest.fixture
def ask_healthy(broker: EmbeddedBroker) -> Iterator[Any]:
    """Make a round trip on a connection that stays open."""
    with contextlib.closing(connect(broker)) as client, client.makefile("rb") as answers:
        numbers = itertools.count(1)

        def ask() -> None:
            number = next(numbers)
            client.sendall(struct.pack(">ihhih", 10, 18, 0, number, -1))
            (size,) = struct.unpack(">i", answers.read(4))
            assert answers.read(size)[:6] == struct.pack(">ih", number, 0)

        yield ask
        ask()


@pytest.mark.parametrize("seed", [1, 2])
def test_broken_requests_of_every_api_do_no_harm(
    broker: EmbeddedBroker,
    topic_id: uuid.UUID,
    ask_healthy: Any,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    maker = RequestMaker(random.Random(seed), topic_id)
    answered: list[bool] = []
    resident_before = psutil.Process().memory_info().rss
    with caplog.at_level(logging.ERROR, "isotherm.broker.server.dispatch.dispatch"):
        for api_key, version in REQUESTS:
            recorded = maker.recorded_frames(api_key, version)
            for sound in (maker.frame(api_key, version), *recorded):
                answered.append(attack(broker, sound, ask_healthy))
                for _ in range(MUTANTS):
                    attack(broker, maker.mutant(sound), ask_healthy)
    unforeseen = {
        (
            record.getMessage().partition(" client_id")[0],
            repr(record.exc_info and record.exc_info[1]),
        )
        for record in caplog.records
        if record.name == "isotherm.broker.server.dispatch.dispatch"
    }
    assert unforeseen == set()
    # The other requests wait for records or for members, and would be answered later.
    assert sum(answered) > len(answered) / 3
    assert psutil.Process().memory_info().rss - resident_before < MEMORY_GROWTH_MAX


def test_recorded_requests_reach_most_apis() -> None:
    """Otherwise the test above would begin from fewer APIs than it claims."""
    recorded = {struct.unpack_from(">h", frame)[0] for frame in RECORDED}
    of_clients = SERVED.keys() - {api.key for api in refused.APIS} - BETWEEN_BROKERS
    assert len(recorded & of_clients) > 0.8 * len(of_clients)


def test_recorded_requests_are_answered_as_they_are(broker: EmbeddedBroker) -> None:
    """All recorded requests at once, each on a connection of its own, so out of order."""
    with contextlib.ExitStack() as clients:
        for frame in random.Random(1).sample(RECORDED, len(RECORDED)):
            client = clients.enter_context(contextlib.closing(connect(broker)))
            client.sendall(struct.pack(">i", len(frame)) + frame)
        with contextlib.closing(connect(broker)) as client:
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            assert client.recv(10)
