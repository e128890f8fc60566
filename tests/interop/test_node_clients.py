"""Clients of Node applications: kafkajs, which is widely used but not developed any more, and
@platformatic/kafka, which is new and uses the newest API versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from isotherm.testing.embedded_broker import EmbeddedBroker

HERE = Path(__file__).parent
KAFKAJS = "kafkajs@2.2.4"
PLATFORMATIC = "@platformatic/kafka@1.35.0"


def test_kafkajs_writes_reads_and_asks(
    broker: EmbeddedBroker, run_node: Callable[..., str]
) -> None:
    script = HERE / "kafkajs" / "round_trip.js"
    saw = json.loads(run_node(KAFKAJS, script, broker.bootstrap_servers, "from-kafkajs"))
    assert saw["records"] == [
        {"key": "a", "value": "committed", "headers": {"where": "here"}, "offset": 0},
        {"key": "a", "value": None, "headers": {}, "offset": 1},
        # Offset 2 is the COMMIT marker, 3 the aborted record, 4 its ABORT marker.
        *({"key": None, "value": f"x{n}", "headers": {}, "offset": 4 + n} for n in (1, 2, 3)),
    ]
    assert saw["end"] == saw["committed"] == 8
    assert "group-of-from-kafkajs" in saw["groups"]
    assert "from-kafkajs" not in saw["topics"]


def test_platformatic_writes_reads_in_both_group_protocols_and_administers(
    broker: EmbeddedBroker, run_node: Callable[..., str]
) -> None:
    script = HERE / "platformatic_kafka" / "round_trip.mjs"
    saw = json.loads(run_node(PLATFORMATIC, script, broker.bootstrap_servers, "from-platformatic"))
    assert saw["known"][:4] == ["none", "gzip", "snappy", "lz4"]
    committed = [*(f"in {codec}" for codec in saw["known"]), "committed"]
    assert saw["seen"] == {"classic": committed, "consumer": committed}
    # The aborted record, its marker, and the committed one.
    assert saw["committed"] == len(saw["known"]) + 3
    assert "classic-of-from-platformatic" in saw["groups"]
    assert saw["configs"] > 20
    assert "from-platformatic" not in saw["topics"]
