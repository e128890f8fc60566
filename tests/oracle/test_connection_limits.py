"""Connections wait for rate and room exactly as in Kafka's ConnectionQuotas, at given times."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from isotherm.broker.server.net.connection_limits import ConnectionLimits
from isotherm.config.server_properties import parse_broker_config
from isotherm.testing.sim_clock import SimClock
from oracle.kafka import run_tool

LIMIT_CONNECTIONS = Path(__file__).with_name("LimitConnections.java")
EVENT_COUNT = 5000
GAPS_MS = (0, 1, 30, 200, 999, 1000, 1001, 4000, 12_000)
GAP_WEIGHTS = (60, 30, 20, 15, 1, 1, 1, 1, 1)
PROPERTIES = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9",
    "controller.listener.names": "CONTROLLER",
    "listeners": "INSIDE://localhost:9092,CLIENTS://localhost:9093,OTHERS://localhost:9094",
    "inter.broker.listener.name": "INSIDE",
    "listener.security.protocol.map": (
        "INSIDE:PLAINTEXT,CLIENTS:PLAINTEXT,OTHERS:PLAINTEXT,CONTROLLER:PLAINTEXT"
    ),
}
LISTENERS = ("INSIDE", "CLIENTS", "OTHERS")

Event = tuple[int, str, str]


@pytest.mark.parametrize(
    "limits",
    [
        {"max.connection.creation.rate": "3"},
        {"max.connection.creation.rate": "20", "quota.window.num": "2"},
        {"listener.name.clients.max.connection.creation.rate": "5"},
        {
            "max.connection.creation.rate": "9",
            "listener.name.clients.max.connection.creation.rate": "2",
            "listener.name.inside.max.connection.creation.rate": "4",
            "quota.window.num": "3",
            "quota.window.size.seconds": "2",
        },
    ],
)
def test_turns_are_kafkas(kafka_tools: Path, limits: Mapping[str, str]) -> None:
    rng = random.Random(3)
    now_ms = 0
    events = []
    for _ in range(EVENT_COUNT):
        # Bursts, a steady trickle, and pauses in which windows end.
        now_ms += rng.choices(GAPS_MS, GAP_WEIGHTS)[0]
        events.append((now_ms, "turn", rng.choice(LISTENERS)))
    expected = list(kafkas_answers(limits, events))
    assert len({*expected}) > 20
    assert list(answers(limits, events)) == expected


@pytest.mark.parametrize(
    "limits",
    [
        {"max.connections": "12"},
        {"listener.name.clients.max.connections": "3"},
        {
            "max.connections": "12",
            "listener.name.inside.max.connections": "8",
            "listener.name.others.max.connections": "5",
        },
    ],
)
def test_room_is_kafkas(kafka_tools: Path, limits: Mapping[str, str]) -> None:
    expected = list(kafkas_answers(limits, room_events(limits)))
    assert {*expected} == {"true", "false"}
    assert list(answers(limits, room_events(limits))) == expected


def room_events(limits: Mapping[str, str]) -> Iterator[Event]:
    """Events in which more connections come than go. Our side decides which are accepted."""
    rng = random.Random(5)
    connections = limits_of(limits)
    open_ones: list[str] = []
    for now_ms in range(EVENT_COUNT):
        listener = rng.choice(LISTENERS)
        if open_ones and rng.random() < 0.4:
            gone = open_ones.pop(rng.randrange(len(open_ones)))
            connections.leave(gone, "127.0.0.1")
            yield now_ms, "leave", gone
        else:
            if connections.has_room(listener):
                connections.enter(listener, "127.0.0.1")
                open_ones.append(listener)
            yield now_ms, "enter", listener
        yield now_ms, "excess", listener


def limits_of(limits: Mapping[str, str], clock: SimClock | None = None) -> ConnectionLimits:
    config = parse_broker_config({**PROPERTIES, **limits, "log.dirs": "unused"})
    return ConnectionLimits(config, clock or SimClock())


def answers(limits: Mapping[str, str], events: list[Event] | Iterator[Event]) -> Iterator[str]:
    clock = SimClock()
    connections = limits_of(limits, clock)
    past_ms = 0
    for now_ms, event, listener in events:
        clock.advance(now_ms - past_ms)
        past_ms = now_ms
        match event:
            case "turn":
                yield str(connections.turn_in_ms(listener))
            case "enter":
                has_room = connections.has_room(listener)
                if has_room:
                    connections.enter(listener, "127.0.0.1")
                yield str(has_room).lower()
            case "leave":
                connections.leave(listener, "127.0.0.1")
            case "excess":
                must_go = connections.excess > 0 and not connections.is_protected(listener)
                yield str(must_go).lower()


def kafkas_answers(
    limits: Mapping[str, str], events: list[Event] | Iterator[Event]
) -> Iterator[str]:
    lines = [f"{key}={text}" for key, text in {**PROPERTIES, **limits}.items()]
    lines += ["", *[f"{now_ms} {event} {listener}" for now_ms, event, listener in events]]
    output = run_tool(str(LIMIT_CONNECTIONS), *LISTENERS, stdin="\n".join(lines))
    return (line[2:] for line in output.splitlines() if line.startswith("= "))
