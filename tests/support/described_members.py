"""The members of a group as librdkafka describes them, in the form of the console's JSON."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from tests.support.conditions import wait_until

TIMEOUT_S = 300


def described_members(bootstrap_servers: str, group: str) -> list[tuple[str, str, Any]]:
    """The client id, the host and the partitions of each member, in their order."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)
    members = described[group].result(TIMEOUT_S).members
    return sorted(
        (
            member.client_id,
            member.host.removeprefix("/"),
            sorted((place.topic, place.partition) for place in member.assignment.topic_partitions),
        )
        for member in members
    )


def shown_members(address: str, group: str) -> list[tuple[str, str, Any]]:
    """The same from the console at this address, as soon as it has looked at the groups again."""
    listed = f"{address}/api/groups"
    wait_until(lambda: group in {each["group"] for each in _json(listed)["groups"]}, group)
    found = _json(f"{listed}/{group}")
    return sorted(
        (
            each["client_id"],
            each["host"],
            sorted((topic, n) for topic, some in each["assigned"].items() for n in some),
        )
        for each in found["members"]
    )


def _json(url: str) -> Any:
    return json.load(urllib.request.urlopen(url))


@contextmanager
def joined_members(
    bootstrap_servers: str, group: str, protocol: str, topic: str
) -> Iterator[list[Consumer]]:
    """Two consumers of a group, which have partitions of the topic and have committed offset 1."""
    consumers = [
        Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "group.protocol": protocol,
                "client.id": f"{protocol}-{number}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        for number in range(2)
    ]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])

        def have_joined() -> bool:
            for consumer in consumers:
                consumer.poll(0.05)
            return all(consumer.assignment() for consumer in consumers)

        wait_until(have_joined, f"two members of {group}")
        for consumer in consumers:
            places = consumer.assignment()
            for place in places:
                place.offset = 1
            consumer.commit(offsets=places, asynchronous=False)
        yield consumers
    finally:
        for consumer in consumers:
            consumer.close()
