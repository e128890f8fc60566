"""A broker with an unusable bucket ends at its start, with one line that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.errors import ConfigError, RemoteResourceNotFoundError, RemoteStorageError
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_check import check_store
from isotherm.testing.local_servers import free_ports
from tests.support.s3_server import BUCKET, S3Server, find_versitygw
from tests.support.s3_stub import S3Stub, WireFault

START_TIMEOUT_S = 300
CREDENTIALS = ("aws.access.key.id", "aws.secret.access.key")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not installed: scripts/s3-server.sh install")
    with S3Server(binary, tmp_path_factory.mktemp("s3") / "root") as running:
        yield running


def settings(config: dict[str, str]) -> ObjectStoreSettings:
    return ObjectStoreSettings.from_config(config)


def wrong(server: S3Server) -> dict[str, tuple[dict[str, str], type[Exception], str]]:
    """The wrong part -> the settings, and the expected refusal."""
    config = server.config
    (port,) = free_ports(1)
    down = f"http://127.0.0.1:{port}"
    return {
        "bucket": (
            config | {"url": "s3://elsewhere"},
            ConfigError,
            "bucket not found (NoSuchBucket) operation=put url=s3://elsewhere",
        ),
        "secret": (
            config | {"aws.secret.access.key": "wrong"},
            ConfigError,
            "access denied (SignatureDoesNotMatch) operation=put",
        ),
        "user": (config | {"aws.access.key.id": "nobody"}, ConfigError, "access denied"),
        "region": (
            config | {"s3.region": "eu-west-1"},
            ConfigError,
            "wrong region: the bucket is in us-east-1 (AuthorizationHeaderMalformed)",
        ),
        "scheme": (
            config | {"s3.endpoint.url": config["s3.endpoint.url"].replace("http:", "https:")},
            ConfigError,
            "not TLS: the store speaks http there, and not https operation=put",
        ),
        "endpoint": (
            config | {"s3.endpoint.url": down},
            RemoteStorageError,
            f"connection refused operation=put url=s3://{BUCKET} endpoint={down}",
        ),
    }


@pytest.mark.parametrize("what", ["bucket", "secret", "user", "region", "scheme", "endpoint"])
def test_what_is_wrong_is_named(server: S3Server, what: str) -> None:
    config, kind, words = wrong(server)[what]
    with pytest.raises(kind) as refused:
        check_store(settings(config), writes=True)
    assert f"the store cannot be used: {words}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_usable_bucket_is_left_as_it_was(server: S3Server) -> None:
    for writes in (True, False):
        check_store(settings(server.config), writes=writes)
    assert list(open_for_reading(settings(server.config)).list_objects("")) == []


def test_missing_user_is_no_missing_object(server: S3Server) -> None:
    """The server answers 404 for an unknown user.

    Readers must not take that for a deleted object.
    """
    client = open_for_reading(settings(server.config | {"aws.access.key.id": "nobody"}))
    with pytest.raises(RemoteStorageError, match="XAdminUserNotFound"):
        client.get("anything", 10)
    with pytest.raises(RemoteResourceNotFoundError):
        open_for_reading(settings(server.config)).get("anything", 10)


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_rights_that_are_lacking_for_one_operation_are_found(method: str) -> None:
    with S3Stub() as stub:
        stub.fail(WireFault.READ_ONLY, method)
        with pytest.raises(ConfigError, match=r"access denied \(AccessDenied\) operation="):
            check_store(settings(stub.config), writes=True)


def test_reader_needs_no_right_to_write() -> None:
    with S3Stub() as stub:
        stub.fail(WireFault.READ_ONLY, "PUT")
        check_store(settings(stub.config), writes=False)


def test_broker_refuses_to_start_in_one_line(server: S3Server, tmp_path: Path) -> None:
    for what, (config, kind, words) in wrong(server).items():
        if what in ("bucket", "endpoint"):
            status, printed = serve(config, tmp_path)
            assert status == (2 if kind is ConfigError else 1)
            (line,) = [text for text in printed.splitlines() if text.startswith("isotherm: ")]
            assert words in line
            assert "Traceback" not in printed
            # The directory can be used by a start with other settings, and by another cluster.
            assert list(tmp_path.iterdir()) == []


def test_missing_credentials_are_reported(server: S3Server) -> None:
    """Without configured credentials the client asks the metadata address of a cloud instance."""
    config = {name: text for name, text in server.config.items() if name not in CREDENTIALS}
    program = (
        "import json, sys\n"
        "from isotherm.remote.storage.settings import ObjectStoreSettings\n"
        "from isotherm.remote.storage.store_check import check_store\n"
        "from isotherm.errors import ConfigError\n"
        "try:\n"
        "    check_store(ObjectStoreSettings.from_config(json.loads(sys.argv[1])), writes=True)\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program, json.dumps(config | {"connect.timeout.ms": "1000"})],
        env=without_credentials(),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert ran.stdout.startswith("the store cannot be used: no credentials"), ran.stderr


def serve(config: dict[str, str], folder: Path) -> tuple[int, str]:
    (port,) = free_ports(1)
    texts = {f"rsm.config.{name}": text for name, text in config.items()}
    texts["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    options = [part for name, text in texts.items() for part in ("-o", f"{name}={text}")]
    command = [sys.executable, "-m", "isotherm.cli.main", "serve", "-d", str(folder), *options]
    ran = subprocess.run(
        command,
        env=without_credentials(),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    return ran.returncode, ran.stderr


def without_credentials() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
