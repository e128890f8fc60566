"""`--command-config`: each command that talks to a broker, over listeners with TLS and logins."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from isotherm.cli.main import COMMANDS, EXIT_FAILED, EXIT_USAGE, app, main
from isotherm.testing.embedded_broker import TIERED_TOPIC
from isotherm.testing.local_servers import free_ports
from tests.support.other_clients import without_other_clients
from tests.support.secured_broker import (
    KINDS,
    SECRET,
    SecuredBroker,
    jaas,
    write_properties,
)
from tests.support.token_provider import CLIENT_SECRET
from tests.support.wait_notices import without_wait_notices


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def run(broker: SecuredBroker, folder: Path, kind: str, *arguments: str, given: str = "") -> Result:
    texts = {"bootstrap.servers": "ignored:1", **broker.security(kind)}
    config = write_properties(folder / "client.properties", texts)
    place = ["-b", broker.address(kind), "--command-config", str(config)]
    result = CliRunner().invoke(app, [*arguments, *place], input=given)
    assert result.exit_code in (0, 4), (result.output, result.exception)
    assert SECRET not in result.output
    assert CLIENT_SECRET not in result.output
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_records_go_in_and_out(broker: SecuredBroker, tmp_path: Path, kind: str) -> None:
    run(broker, tmp_path, kind, "topics", "create", kind, "--partitions", "1")
    run(broker, tmp_path, kind, "produce", kind, given="one\ntwo\n")
    assert run(broker, tmp_path, kind, "consume", kind).stdout == "one\ntwo\n"


def test_other_commands(broker: SecuredBroker, tmp_path: Path) -> None:
    kind = "SCRAM-SHA-512"

    def call(*arguments: str) -> Result:
        return run(broker, tmp_path, kind, *arguments)

    settings = [f"--config={name}={text}" for name, text in TIERED_TOPIC.items()]
    call("topics", "create", "tiered", *settings)
    assert "tiered" in call("topics", "list").stdout
    call("topics", "alter", "tiered", "--partitions", "2")
    assert len(call("topics", "describe", "tiered", "--json").stdout.splitlines()) == 2
    assert call("groups", "list").exit_code == 0
    call("remote", "segments", "tiered")
    call("remote", "events")
    # This command opens its own connection to ask for features.
    call("remote", "migrate", "--check")
    call("topics", "delete", "tiered")


def test_doctor_looks_for_the_broker(broker: SecuredBroker, tmp_path: Path) -> None:
    config = write_properties(tmp_path / "c.properties", broker.security("SCRAM-SHA-256"))
    wrong = broker.security("PLAIN") | {"sasl.jaas.config": jaas("PLAIN", "wrong")}
    refused = write_properties(tmp_path / "w.properties", wrong)
    address = broker.address("PLAIN")
    for file, outcome in ((config, "ok"), (refused, "failed")):
        place = ["-b", address, "--command-config", str(file)]
        result = CliRunner().invoke(
            app,
            ["doctor", "--json", "--data-dir", str(tmp_path), *place],
        )
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        (found,) = (
            line
            for line in lines
            if line["check"].startswith("broker") and "packages" not in line["check"]
        )
        assert found["outcome"] == outcome
    assert "Invalid username or password" in found["found"]


# ---- errors


def error(monkeypatch: pytest.MonkeyPatch, arguments: list[str], capfd: Capture) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["isotherm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert SECRET not in captured.err
    errors = without_wait_notices(without_other_clients(captured.err, " ".join(arguments)))
    return ended.value.code, errors  # type: ignore[return-value]


Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("kind", "changes", "cause"),
    [
        ("PLAIN", {"sasl.jaas.config": jaas("PLAIN", "wrong")}, "Invalid username or password"),
        (
            "SCRAM-SHA-512",
            {"sasl.jaas.config": jaas("SCRAM-SHA-512", "wrong")},
            "the login is refused user=alice mechanism=SCRAM-SHA-512",
        ),
        ("SSL", {"ssl.truststore.location": "other-ca.pem"}, "certificate is not trusted"),
        (
            "mTLS",
            {"ssl.keystore.location": None},
            "a certificate of the client: set ssl.keystore.location",
        ),
        ("PLAIN", {"security.protocol": "SASL_PLAINTEXT"}, "TLS expected"),
        (
            "PLAIN",
            {"security.protocol": "SSL"},
            "a login is expected there: set security.protocol=",
        ),
    ],
)
@pytest.mark.parametrize(
    "command", [["topics", "list"], ["remote", "migrate", "--check"]], ids=" ".join
)
def test_refusal_is_one_line_with_address_and_cause(
    broker: SecuredBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
    kind: str,
    changes: dict[str, str | None],
    cause: str,
    command: list[str],
) -> None:
    texts = {**broker.security(kind), **changes}
    if texts["security.protocol"] == "SASL_PLAINTEXT":
        texts = {name: text for name, text in texts.items() if not name.startswith("ssl.")}
    if texts["security.protocol"] == "SSL":
        texts = {name: text for name, text in texts.items() if not name.startswith("sasl.")}
    if kind == "mTLS":
        texts["ssl.keystore.type"] = None
    folder = f"{broker.files}/"
    present = {
        name: folder + text if text.endswith("other-ca.pem") else text
        for name, text in texts.items()
        if text is not None
    }
    config = write_properties(tmp_path / "client.properties", present)
    address = broker.address(kind)
    arguments = [*command, "-b", address, "--command-config", str(config)]
    code, text = error(monkeypatch, arguments, capfd)
    assert code == EXIT_FAILED
    first, *others = text.splitlines()
    assert not others
    assert f"{address}: " in first
    assert cause in first


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"secruity.protocol": "SSL"}, "secruity.protocol"),
        ({"security.protocol": "SSL", "sasl.jaas.config": SECRET}, "key=sasl.jaas.config"),
        ({"sasl.mechanism": "PLAIN"}, "key=sasl.mechanism"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/no/such"},
            "key=ssl.truststore.location",
        ),
    ],
)
def test_file_that_cannot_be_used_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
    texts: dict[str, str],
    named: str,
) -> None:
    config = write_properties(tmp_path / "client.properties", texts)
    (port,) = free_ports(1)
    arguments = ["topics", "list", "-b", f"localhost:{port}", "--command-config", str(config)]
    code, text = error(monkeypatch, arguments, capfd)
    assert code == EXIT_USAGE
    assert named in text
    assert f"file={config}" in text


def test_every_command_with_a_broker_has_the_option() -> None:
    """The jobs of `isotherm pipeline` have it too."""
    checked = 0
    for name, made in COMMANDS.items():
        group = typer.Typer()
        found = made()
        if isinstance(found, typer.Typer):
            group.add_typer(found, name=name)
        else:
            group.command(name=name)(found)
        waiting = [typer.main.get_command(group)]
        while waiting:
            command = waiting.pop()
            waiting += getattr(command, "commands", {}).values()
            options = {text for param in command.params for text in param.opts}
            if "--bootstrap-server" in options:
                assert "--command-config" in options, command.name
                checked += 1
    assert checked > 15
