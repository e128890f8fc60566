"""A schema registry with Confluent's API: Apicurio Registry, which keeps its schemas in a topic."""

from __future__ import annotations

import contextlib
import json
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from oracle.http_server import http_server
from oracle.jars import require_command, resolve_registry_archive
from oracle.topics import WAIT_TIMEOUT_S

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
# It lives for one test module: a fast start counts, not speed.
_JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextlib.contextmanager
def schema_registry(
    directory: Path, bootstrap_servers: str, start_timeout_s: float = WAIT_TIMEOUT_S
) -> Iterator[str]:
    """Run the registry in `directory`, with its topics on the brokers, while the `with` block runs;
    yield its URL.

    Raises OracleUnavailableError if java, mvn or the registry's jars are not available.
    """
    with tarfile.open(resolve_registry_archive()) as archive:
        archive.extractall(directory, filter="data")
    (jar,) = directory.glob("*-runner.jar")
    (port,) = free_ports(1)
    command = [
        require_command("java"), *_JVM, "-Dquarkus.http.host=127.0.0.1",
        f"-Dquarkus.http.port={port}", "-Dapicurio.storage.kind=kafkasql",
        f"-Dapicurio.kafkasql.bootstrap.servers={bootstrap_servers}", "-jar", str(jar),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with http_server(command, directory, f"{url}/subjects", "the schema registry", start_timeout_s):
        yield url


def register(url: str, subject: str, schema: object, kind: str = "AVRO", **more: object) -> int:
    """Register a schema, a text or an object to write as JSON; return its id."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = {"schema": text, "schemaType": kind, **more}
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions",
        json.dumps(body).encode(),
        {"Content-Type": _CONTENT_TYPE},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return int(json.load(answer)["id"])
