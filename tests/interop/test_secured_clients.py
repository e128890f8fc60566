"""Each client over each kind of security: docs/clients.md has the table. A record goes in and comes
out.

Every program gets its configurations on its standard input, so that no password is on a command
line.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import re
import ssl
import subprocess
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

from isotherm.config.client_security import librdkafka_properties
from oracle.tools import CONSOLE_CONSUMER, VERIFIABLE_PRODUCER, run_tools
from suites import go_modules
from suites.building import run_step
from suites.results import SuiteUnavailableError
from tests.interop.conftest import node_modules
from tests.support.secured_broker import (
    KINDS,
    LOGINS,
    MUTUAL,
    PASSWORDS,
    SECRET,
    TIMEOUT_S,
    TOKENS,
    USER,
    SecuredBroker,
    write_properties,
)
from tests.support.token_provider import CLIENT_ID, CLIENT_SECRET, fetched_token

HERE = Path(__file__).parent
KAFKAJS = "kafkajs@2.2.4"
CLIENTS = ("librdkafka", "kafka-python", "aiokafka", "Java", "franz-go", "kafkajs")


def topic_of(client: str, kind: str) -> str:
    return f"{client}-{kind}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with SecuredBroker(tmp_path_factory.mktemp("secured"), settings) as running:
        admin = AdminClient(librdkafka_properties(running.client(MUTUAL)))
        names = [topic_of(client, kind) for client in CLIENTS for kind in KINDS]
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result(TIMEOUT_S)
        yield running


def given(broker: SecuredBroker, client: str) -> list[dict[str, str]]:
    """The configurations as input of a program in another language."""
    users = dict.fromkeys(LOGINS, (USER, SECRET)) | {TOKENS: (CLIENT_ID, CLIENT_SECRET)}
    return [
        {
            "kind": kind,
            "server": broker.address(kind),
            "topic": topic_of(client, kind),
            "authority": str(broker.files / "ca.pem"),
            "certificate": str(broker.files / "alice.pem") if kind == MUTUAL else "",
            "user": user,
            "password": password,
            "tokens": broker.token_url if kind == TOKENS else "",
        }
        for kind in KINDS
        for user, password in [users.get(kind, ("", ""))]
    ]


def run_program(command: list[str], configurations: list[dict[str, str]], **env: str) -> list[str]:
    ran = subprocess.run(
        command,
        input=json.dumps(configurations),
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    errors = ran.stderr.replace(SECRET, "[the secret]").replace(CLIENT_SECRET, "[the secret]")
    assert ran.returncode == 0, errors
    kinds: list[str] = json.loads(ran.stdout)
    return kinds


@pytest.mark.parametrize("kind", KINDS)
def test_librdkafka(broker: SecuredBroker, kind: str) -> None:
    client, topic = librdkafka_properties(broker.client(kind)), topic_of("librdkafka", kind)
    producer = Producer(client)
    producer.produce(topic, b"value")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**client, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message is not None
    assert (message.error(), message.value()) == (None, b"value")


def python_settings(broker: SecuredBroker, kind: str) -> dict[str, Any]:
    """The properties under their names in kafka-python and aiokafka."""
    context = ssl.create_default_context(cafile=str(broker.files / "ca.pem"))
    if kind == MUTUAL:
        context.load_cert_chain(broker.files / "alice.pem")
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.address(kind),
        "security_protocol": "SASL_SSL" if kind in LOGINS else "SSL",
        "ssl_context": context,
    }
    if kind in PASSWORDS:
        settings |= {
            "sasl_mechanism": kind,
            "sasl_plain_username": USER,
            "sasl_plain_password": SECRET,
        }
    return settings


class TokensOfKafkaPython(KafkaPythonTokenProvider):  # type: ignore[misc]
    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._fetched = functools.partial(fetched_token, url, context)

    def token(self) -> str:
        return self._fetched()


class TokensOfAiokafka(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._fetched = functools.partial(fetched_token, url, context)

    async def token(self) -> str:
        return await asyncio.to_thread(self._fetched)


@pytest.mark.parametrize("kind", KINDS)
def test_kafka_python(broker: SecuredBroker, kind: str) -> None:
    settings, topic = python_settings(broker, kind), topic_of("kafka-python", kind)
    if kind == TOKENS:
        provider = TokensOfKafkaPython(broker.token_url, settings["ssl_context"])
        settings |= {"sasl_mechanism": kind, "sasl_oauth_token_provider": provider}
    producer = KafkaProducer(**settings)
    producer.send(topic, b"value").get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000
    )
    assert next(iter(consumer)).value == b"value"
    consumer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_aiokafka(broker: SecuredBroker, kind: str) -> None:
    settings, topic = python_settings(broker, kind), topic_of("aiokafka", kind)
    if kind == TOKENS:
        provider = TokensOfAiokafka(broker.token_url, settings["ssl_context"])
        settings |= {"sasl_mechanism": kind, "sasl_oauth_token_provider": provider}

    async def round_trip() -> bytes | None:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"value")
        consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
        async with consumer, asyncio.timeout(TIMEOUT_S):
            value: bytes | None = (await consumer.getone()).value
            return value

    assert asyncio.run(round_trip()) == b"value"


@pytest.mark.oracle
def test_java(
    broker: SecuredBroker, kafka_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's own clients, through the tools that come with them, all in one JVM."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={broker.token_url}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
    commands = []
    for kind in KINDS:
        config = str(write_properties(tmp_path / f"{kind}.properties", broker.security(kind)))
        place = [f"--bootstrap-server={broker.address(kind)}", f"--topic={topic_of('Java', kind)}"]
        commands += [
            [VERIFIABLE_PRODUCER, *place, "--max-messages=1", f"--command-config={config}"],
            [
                CONSOLE_CONSUMER,
                *place,
                "--from-beginning",
                "--max-messages=1",
                f"--timeout-ms={TIMEOUT_S * 1000}",
                f"--command-config={config}",
            ],
        ]
    # The producer goes on in a thread of its own while the next tool runs.
    printed = "\n".join(run_tools(*commands))
    assert printed.count('"name":"producer_send_success"') == len(KINDS)
    assert printed.count("Processed a total of 1 messages") == len(KINDS)


def test_franz_go(broker: SecuredBroker) -> None:
    folder = HERE / "franz_go" / "secured"
    text = b"".join((folder / name).read_bytes() for name in ("go.mod", "main.go"))
    binary = go_modules.TOOLS / f"franz-go-secured-{hashlib.sha256(text).hexdigest()[:12]}"
    if not binary.exists():
        try:
            go_modules.module_source(folder)
        except SuiteUnavailableError as error:
            pytest.skip(str(error))
        binary.parent.mkdir(exist_ok=True)
        run_step(["go", "build", "-o", str(binary), "."], folder)
    assert run_program([str(binary)], given(broker, "franz-go")) == list(KINDS)


def test_kafkajs(broker: SecuredBroker) -> None:
    modules = str(node_modules(KAFKAJS))
    script = str(HERE / "kafkajs" / "secured.js")
    worked = run_program(["node", script], given(broker, "kafkajs"), NODE_PATH=modules)
    assert worked == list(KINDS)


def test_page_has_the_table() -> None:
    page = (HERE.parents[1] / "docs" / "clients.md").read_text()
    table = page.partition("## TLS and logins")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)
    ]
    assert cells[0] == ["", *KINDS]
    assert {row[0]: row[1:] for row in cells[2:]} == {
        name: ["yes"] * len(KINDS) for name in CLIENTS
    }
    found: Callable[[str], object] = globals().get
    assert all(found(f"test_{name.lower().replace('-', '_')}") for name in CLIENTS)
