"""A REST catalog of Iceberg tables over an S3 bucket: the server of Iceberg's own compatibility
kit, which keeps its state in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from oracle.http_server import http_server
from oracle.jars import require_command, resolve_iceberg_catalog

START_TIMEOUT_S = 300
_SERVER = "org.apache.iceberg.rest.RESTCatalogServer"
_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextlib.contextmanager
def rest_catalog(directory: Path, store: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Run the catalog while the `with` block runs; yield PyIceberg's properties for it.

    Its warehouse is in the bucket that Isotherm's settings in `store` name. The server has one
    warehouse and ignores the name that a client gives.

    Raises OracleUnavailableError if java, mvn or the server's jars are not available.
    """
    (port,) = free_ports(1)
    of_store = {
        "s3.endpoint": store["s3.endpoint.url"],
        "s3.access-key-id": store["aws.access.key.id"],
        "s3.secret-access-key": store["aws.secret.access.key"],
    }
    settings = {
        "rest.port": str(port),
        "warehouse": f"{store['url']}/warehouse",
        "catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": store["s3.region"],
        "s3.path-style-access": "true",
        **of_store,
    }
    classes = f"{resolve_iceberg_catalog()}/*"
    command = [require_command("java"), *_JVM, "-cp", classes, _SERVER]
    environment = {_variable(key): value for key, value in settings.items()}
    uri = f"http://127.0.0.1:{port}/"
    probe = f"{uri}v1/config"
    with http_server(command, directory, probe, "the REST catalog", START_TIMEOUT_S, environment):
        yield {"type": "rest", "uri": uri, "s3.region": store["s3.region"], **of_store}


def _variable(key: str) -> str:
    """The server's name in the environment for one of its settings."""
    return f"CATALOG_{key.replace('-', '__').replace('.', '_')}".upper()
