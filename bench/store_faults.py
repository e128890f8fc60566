"""Does a sick object store slow the broker's local traffic down?

    python -m bench.store_faults [--seconds 8] [--rounds 3]

One broker tiers into an S3 server (versitygw) through a proxy (toxiproxy). A producer sends small
records at a fixed rate to a tiered topic that rolls often, with acks=all; a round with a sound
network is followed by one for each toxic. Prints the p50 and p99 of the time to the answer, medians
over the rounds, and the p99 over the sound one's: the issue asks for at most 1.2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.s3_server import S3Server, find_versitygw
from isotherm.testing.toxiproxy import Toxiproxy, find_toxiproxy

RATE = 200
SIZE = 10_000
TOXICS: dict[str, dict[str, int]] = {
    "sound": {},
    "latency": {"latency": 500, "jitter": 100},
    "bandwidth": {"rate": 64},
    "reset_peer": {"timeout": 5},
    "down": {},
}


def latencies_ms(servers: str, seconds: float) -> list[float]:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    found: list[float] = []

    def answered(sent: float) -> None:
        found.append((time.perf_counter() - sent) * 1000)

    began = time.perf_counter()
    for number in range(int(RATE * seconds)):
        while time.perf_counter() < began + number / RATE:
            producer.poll(0.001)
        sent = time.perf_counter()
        producer.produce("t", bytes(SIZE), on_delivery=lambda *_, sent=sent: answered(sent))
    producer.flush(30)
    return found[RATE // 2 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    versitygw, toxiproxy = find_versitygw(), find_toxiproxy()
    if versitygw is None or toxiproxy is None:
        raise SystemExit("scripts/s3-server.sh install and scripts/toxiproxy.sh install are needed")
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in TOXICS}
    with (
        tempfile.TemporaryDirectory() as directory,
        S3Server(versitygw, Path(directory) / "buckets") as server,
        Toxiproxy(toxiproxy, server.port) as proxy,
    ):
        broker = BrokerProcess(
            Path(directory) / "broker",
            {
                **{f"rsm.config.{key}": value for key, value in server.config.items()},
                "rsm.config.s3.endpoint.url": f"http://127.0.0.1:{proxy.port}",
                "rsm.config.request.timeout.ms": "2000",
            },
        )
        try:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            config = {
                "remote.storage.enable": "true",
                "segment.bytes": "1048576",
                "local.retention.bytes": "1",
            }
            admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(30)
            latencies_ms(broker.bootstrap_servers, 3)
            for _ in range(options.rounds):
                for name, attributes in TOXICS.items():
                    toxic = (
                        contextlib.nullcontext()
                        if name == "sound"
                        else proxy.toxic(name, **attributes)
                    )
                    with toxic:
                        found = sorted(latencies_ms(broker.bootstrap_servers, options.seconds))
                    measured[name].append((found[len(found) // 2], found[len(found) * 99 // 100]))
        finally:
            broker.kill()
    medians = {
        name: [statistics.median(each[index] for each in rounds) for index in (0, 1)]
        for name, rounds in measured.items()
    }
    result = {
        name: {
            "p50_ms": round(p50, 2),
            "p99_ms": round(p99, 2),
            "p99_of_sound": round(p99 / medians["sound"][1], 2),
        }
        for name, (p50, p99) in medians.items()
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
