"""The address on which `isotherm console` listens, and the settings that it refuses."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import Result
from starlette.testclient import TestClient
from typer.testing import CliRunner

from isotherm.cli.console import job_commands, sweep_command
from isotherm.cli.main import app, causes_of
from isotherm.console import server as console_server
from isotherm.errors import ConfigError
from isotherm.extras import CONSOLE, install_command
from tests.support.certificates import issue

GONE = "http://127.0.0.1:1"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each server that was started."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(uvicorn, "run", lambda _, **options: found.append(options))
    return found


async def nothing(scope: object, receive: object, send: object) -> None:
    """An ASGI application that does nothing."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["console", *arguments])


def test_pages_are_for_this_machine_alone_by_default(started: list[dict[str, Any]]) -> None:
    result = run("-b", "localhost:1")
    assert result.exit_code == 0, result.output
    assert "http://127.0.0.1:8585/" in result.stdout
    (options,) = started
    assert (options["host"], options["port"]) == ("127.0.0.1", 8585)


def test_sweep_command_can_be_pasted_into_a_shell() -> None:
    made = sweep_command("localhost:9092", "/data/my bucket")
    assert shlex.split(made)[3:5] == ["--path", "/data/my bucket"]
    assert shlex.split(made)[-2:] == ["-b", "localhost:9092"]


def test_address_of_all_networks_needs_a_host_name(started: list[dict[str, Any]]) -> None:
    assert isinstance(run("--host", "0.0.0.0").exception, ConfigError)
    named = ("--host", "::", "--allow-host", "tiers.example")
    assert run(*named, "--without-login").exit_code == 0
    assert len(started) == 1


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    file = tmp_path / "credentials"
    file.touch(0o600)
    file.write_text("reader:secret\n")
    return file


@pytest.mark.parametrize("host", ["192.0.2.7", "tiers.example", "0.0.0.0"])
def test_address_of_others_needs_a_login(
    started: list[dict[str, Any]],
    credentials: Path,
    host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # These addresses are of other machines.
    monkeypatch.setattr(console_server, "check_address_is_free", lambda *_: None)
    named = ("--host", host, "--allow-host", "tiers.example")
    refused = run(*named).exception
    assert isinstance(refused, ConfigError)
    assert "--credentials-file" in str(refused)
    assert not started
    allowed = run(*named, "--credentials-file", str(credentials))
    assert allowed.exit_code == 0
    assert "passwords are sent in clear text" in allowed.stderr
    assert run("--host", "localhost").exit_code == 0
    assert len(started) == 2


def test_certificate_is_tried_before_the_start(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    identity = str(issue("console").write_pem(tmp_path / "console.pem"))
    other = str(issue("other").write_pem(tmp_path / "other.pem"))
    for arguments in (
        ("--tls-certificate", identity),
        ("--tls-certificate", identity, "--tls-key", other),
        ("--tls-certificate", "/no/such/file", "--tls-key", identity),
    ):
        assert isinstance(run(*arguments).exception, ConfigError)
    assert not started
    found = run("--tls-certificate", identity, "--tls-key", identity)
    assert "https://127.0.0.1:8585/" in found.stdout
    config = uvicorn.Config(nothing, **started[0])
    config.load()
    assert config.is_ssl


def test_console_of_the_compose_file_starts(started: list[dict[str, Any]]) -> None:
    text = (ROOT / "packaging" / "compose.yaml").read_text()
    (command,) = re.findall(r'command: (\["console".*\])', text)
    result = CliRunner().invoke(app, json.loads(command))
    assert result.exit_code == 0, result.output
    (options,) = started
    assert f":{options['port']}:{options['port']}" in text


def test_jobs_are_started_only_where_that_is_allowed(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert isinstance(run("--allow-changes").exception, ConfigError)
    assert run("--allow-changes", "--reports", str(tmp_path)).exit_code == 0
    assert len(started) == 1


def test_started_jobs_are_commands_that_only_report() -> None:
    client = ["-b", "localhost:9092", "-X", "client.id=me"]
    commands = job_commands(client, "/data/bucket", ["key.prefix=k/"])
    assert commands.keys() == {"audit", "sweep"}
    for command in commands.values():
        assert command[-1] == "--json"
        assert "--delete" not in command
        assert " ".join(client) in " ".join(command)
    assert "--path /data/bucket -o key.prefix=k/" in " ".join(commands["sweep"])
    assert job_commands(client, None, None).keys() == {"audit"}


def test_wrong_price_is_refused_before_the_start(started: list[dict[str, Any]]) -> None:
    assert isinstance(run("--price", "cheap").exception, ConfigError)
    assert not started


def test_address_that_is_taken_is_an_error_of_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **options: Any) -> None:
        assert options["port"] == 8613
        raise SystemExit(3)

    monkeypatch.setattr(uvicorn, "run", refused)
    result = run("--port", "8613")
    assert isinstance(result.exception, ConfigError)
    assert "port=8613" in str(result.exception)
    assert causes_of(result.exception) == []


def test_address_that_is_taken_is_said_before_that_of_the_pages(
    started: list[dict[str, Any]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run("--port", str(port))
    assert "Address already in use" in str(result.exception)
    assert result.output == ""
    assert not started


def test_broker_that_is_not_there_is_said_at_the_start(started: list[dict[str, Any]]) -> None:
    result = run("-b", "127.0.0.1:1")
    assert "connection refused" in result.stderr
    assert "until a broker answers" in result.stderr
    assert len(started) == 1


def test_installation_without_the_extra_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test may have loaded these modules.
    for name in [module for module in sys.modules if module.partition(".")[0] == "starlette"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [module for module in sys.modules if module.startswith("isotherm.console.")]:
        monkeypatch.delitem(sys.modules, name)
    # Fail at once: a started console would serve until the test's timeout.
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: pytest.fail("the console has started"))
    assert install_command(CONSOLE) in str(run().exception)


@pytest.mark.slow
def test_no_answer_has_a_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the cluster, the metrics nor the registry can be reached, and jobs may be started."""
    texts: list[str] = []

    def ask(made: Any, **_: object) -> None:
        with TestClient(made, base_url="http://127.0.0.1:8585") as client:
            client.auth = ("reader", "login-xyzzy")
            document = client.get("/api/openapi.json").json()
            for address, methods in document["paths"].items():
                filled = re.sub(r"\{\w+\}", "0", address)
                texts.extend(client.request(method, filled).text for method in methods)

    def secret(name: str, text: str) -> str:
        file = tmp_path / name
        file.touch(0o600)
        file.write_text(text)
        return str(file)

    monkeypatch.setattr(uvicorn, "run", ask)
    client = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.password=file-xyzzy\n"
    result = run(
        *("-b", "localhost:1", "-X", "sasl.username=me", "-X", "ssl.keystore.password=key-xyzzy"),
        *("--command-config", secret("client.properties", client)),
        *("--reports", str(tmp_path), "--allow-changes"),
        *("--credentials-file", secret("logins", "reader:login-xyzzy\n")),
        *("--metrics", GONE, "--metrics-login", secret("metrics", "scraper:metrics-xyzzy\n")),
        *("--registry", GONE, "--registry-option", "basic.auth.user.info=me:registry-xyzzy"),
    )
    assert result.exit_code == 0, result.output
    assert len(texts) > 5
    assert not [each for each in [*texts, result.output] if "xyzzy" in each]
    assert any("localhost:1" in each for each in texts)
    assert "the schema registry fails" in result.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--registry", "http://me:xyzzy@registry:8081"), "an address must not contain a password"),
        (("--registry-option", "basic.auth.user.info=me:xyzzy"), "need its URL"),
    ],
)
def test_registry_is_refused_without_its_password(arguments: tuple[str, ...], reason: str) -> None:
    refused = run("-b", "localhost:1", *arguments).exception
    assert isinstance(refused, ConfigError)
    assert reason in str(refused)
    assert "xyzzy" not in str(refused)


def test_pages_are_served_by_https(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    issued = issue("console")
    identity = str(issued.write_pem(tmp_path / "console.pem"))
    answers: list[tuple[int, int, bytes]] = []

    def serve(made: Any, **options: Any) -> None:
        server = uvicorn.Server(uvicorn.Config(made, **options, lifespan="off"))
        listens = threading.Event()
        startup = server.startup

        async def tell(sockets: Any = None) -> None:
            await startup(sockets)
            listens.set()

        monkeypatch.setattr(server, "startup", tell)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            assert listens.wait(300)
            _, port = server.servers[0].sockets[0].getsockname()
            trusted = ssl.create_default_context(cadata=issued.certificate_pem.decode())
            connection = http.client.HTTPSConnection(
                "localhost", port, context=trusted, timeout=300
            )
            connection.request("GET", "/api/openapi.json")
            answer = connection.getresponse()
            answers.append((port, answer.status, answer.read()))
            connection.close()
        finally:
            server.should_exit = True
            thread.join()

    monkeypatch.setattr(uvicorn, "run", serve)
    files = ("--tls-certificate", identity, "--tls-key", identity)
    result = run("-b", "localhost:1", "--port", "0", "--host", "localhost", *files)
    assert result.exit_code == 0, result.output
    ((port, status, body),) = answers
    assert f"https://localhost:{port}/" in result.stdout
    assert status == 200
    assert json.loads(body)["openapi"]
