"""`isotherm console`: pages in the browser that show the tiers of a cluster."""

from __future__ import annotations

import ipaddress
import shlex
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    BootstrapServer,
    ClientOptions,
    Registry,
    RegistryOption,
    parse_pairs,
)
from isotherm.cli.output import console as terminal
from isotherm.cli.output import error_console
from isotherm.cli.pipeline_metadata import StoreOption, store_settings
from isotherm.cli.topic_storage import BucketPath, Metrics, MetricsLogin, Price
from isotherm.clock import Clock, SystemClock
from isotherm.config.http_credentials import read_credentials
from isotherm.errors import (
    BrokerUnreachableError,
    ConfigError,
    SaslAuthenticationError,
    SchemaRegistryError,
)
from isotherm.printable import printable, without_passwords
from isotherm.remote.storage.layout.names import AIVEN
from isotherm.storage_view.prices import DEFAULT_PRICE, price_list

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.tables.dead_letters import DeadLetters
    from isotherm.spark.tables.listed_table import ListedTable
    from isotherm.storage_view.registered_values import RegisteredValues

DEFAULT_PORT = 8585
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


_Port = Annotated[
    int, typer.Option(min=0, max=65535, help="The port of the pages; 0 is any free one.")
]
_Host = Annotated[
    str,
    typer.Option(
        help="The address to listen on. An address that other machines can reach needs"
        " --credentials-file."
    ),
]
_CredentialsFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A file with NAME:PASSWORD on each line. The pages require one of them (HTTP basic).",
    ),
]
_WithoutLogin = Annotated[
    bool,
    typer.Option(
        "--without-login",
        help="Listen on a network address without a login, because a proxy authenticates users.",
    ),
]
_TlsCertificate = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Serve https with this certificate and its chain (PEM)."),
]
_TlsKey = Annotated[
    str | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")
]
_Reports = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        metavar="FOLDER",
        help="Show the reports of jobs in it: JOB-ANYTHING.jsonl, as isotherm pipeline JOB --json"
        " prints.",
    ),
]
_AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="Pages may start audits, and with --path sweeps, that only report. Needs --reports.",
    ),
]
_AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A host name of the pages' address in browsers, such as a reverse proxy's. May be"
        " given many times.",
    ),
]
_Interval = Annotated[
    float,
    typer.Option(min=1, help="The shortest time between two reads of the cluster, in seconds."),
]
_Layout = Annotated[
    str, typer.Option(help="How the bucket names objects: aiven or local-tiered-storage.")
]
_KeyPrefix = Annotated[
    str | None, typer.Option(help="The bucket's key.prefix, to show whole object keys.")
]


_Warehouse = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Show the tables of topics in it: the --warehouse of isotherm pipeline table.",
    ),
]
_Catalog = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The catalog of these tables, as for pipeline table."),
]
_ToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--to-option",
        metavar="KEY=VALUE",
        help="A property of that catalog. May be given many times.",
    ),
]


@with_groups
def console(
    *,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    port: _Port = DEFAULT_PORT,
    host: _Host = "127.0.0.1",
    credentials_file: _CredentialsFile = None,
    without_login: _WithoutLogin = False,
    tls_certificate: _TlsCertificate = None,
    tls_key: _TlsKey = None,
    reports: _Reports = None,
    allow_changes: _AllowChanges = False,
    allow_host: _AllowHost = None,
    interval_s: _Interval = 5.0,
    metrics: Metrics = None,
    metrics_login: MetricsLogin = None,
    price: Price = DEFAULT_PRICE,
    layout: _Layout = AIVEN,
    key_prefix: _KeyPrefix = None,
    path: BucketPath = None,
    option: StoreOption = None,
    registry: Registry = None,
    registry_option: RegistryOption = None,
    warehouse: _Warehouse = None,
    catalog: _Catalog = None,
    to_option: _ToOption = None,
    client: ClientOptions,
) -> None:
    """Show the tiers of a cluster in the browser: Isotherm's or any Kafka cluster's.

    It only reads. While no page is open it sends the cluster nothing. It ends with Ctrl+C.
    """
    from isotherm.console.app import ConsoleSettings, console_app
    from isotherm.console.jobs import JobReports, JobRunner
    from isotherm.console.server import check_address_is_free, free_port, serve
    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.console.watched_metrics import WatchedMetrics, metrics_addresses
    from isotherm.storage_view.cluster_storage import StorageReader
    from isotherm.storage_view.record_sources import ClusterRecords
    from isotherm.storage_view.remote_segment_sources import open_bucket_source
    from isotherm.storage_view.segment_facts import named_layout

    extra = client.properties
    clock = SystemClock()
    addresses = metrics_addresses(metrics or (), metrics_login)
    watched_metrics = WatchedMetrics(addresses, clock, interval_s)
    settings = ConsoleSettings(
        price_list(price),
        named_layout(layout, key_prefix),
        _hosts(host, allow_host or []),
        sweep_command(bootstrap_server, path),
        shown_arguments(bootstrap_server, client),
        _credentials(credentials_file, host, without_login=without_login),
        watched_metrics,
        clock,
        _registered_values(registry, registry_option, clock),
        warehouse_tables(warehouse, catalog, parse_pairs(to_option)),
    )
    check_address_is_free(host, port)
    # Chosen here, as the line with the address comes before the server.
    port = port or free_port(host)
    with_tls = _has_identity(tls_certificate, tls_key)
    if settings.credentials is not None and not with_tls and not _is_loopback(host):
        error_console().print("passwords are sent in clear text; --tls-certificate encrypts them")
    bucket = None if path is None else store_settings(path, option)
    properties = {"bootstrap.servers": bootstrap_server, **extra}
    _warn_of_silence(properties)

    def open_reader() -> StorageReader:
        source = None if bucket is None else open_bucket_source(bucket, lambda _: True)
        return StorageReader(properties, clock, source=source)

    own = _client_arguments(bootstrap_server, client)
    jobs = job_commands(own, path, option)
    runner = JobRunner(_needed(reports), jobs, clock) if allow_changes else None
    with ExitStack() as closing:
        cluster = WatchedCluster(open_reader, clock, interval_s)
        storage = None if bucket is None else _opened(bucket)
        records = ClusterRecords(properties, clock, storage)
        for part in (storage, runner, records, cluster, watched_metrics):
            if part is not None:
                closing.callback(part.close)
        scheme = "https" if with_tls else "http"
        terminal().print(f"console of {bootstrap_server}: {scheme}://{_named(host)}:{port}/")
        app = console_app(cluster, records, settings, JobReports(reports), runner)
        serve(app, host, port, tls_certificate, tls_key)


def _warn_of_silence(properties: Mapping[str, str]) -> None:
    """Print a line if no broker answers now: the pages show the cluster as soon as one does. Raises
    ConfigError for an invalid address."""
    from isotherm.client.broker_probe import NOTICE_S, check_brokers

    try:
        check_brokers(properties, timeout_s=NOTICE_S)
    except (BrokerUnreachableError, SaslAuthenticationError) as error:
        text = f"isotherm: {error}; the pages show this until a broker answers"
        error_console().print(printable(text), soft_wrap=True)


def _needed(reports: Path | None) -> Path:
    if reports is None:
        raise ConfigError("--allow-changes needs a folder of reports key=--reports")
    return reports


def sweep_command(bootstrap_server: str, path: str | None) -> str:
    # Pages show it.
    place = "s3://BUCKET/PREFIX" if path is None else shlex.quote(without_passwords(path))
    return f"isotherm pipeline sweep --path {place} -b {shlex.quote(bootstrap_server)}"


def shown_arguments(bootstrap_server: str, client: ClientOptions) -> str:
    """The options of a command for this cluster, as pages show them. Without those of -X, which may
    be passwords."""
    shown = ["-b", bootstrap_server]
    if client.command_config is not None:
        shown += ["--command-config", str(client.command_config)]
    return shlex.join(shown)


def _client_arguments(bootstrap_server: str, client: ClientOptions) -> list[str]:
    """The client options of the console as arguments for a command that it starts."""
    arguments = ["-b", bootstrap_server]
    for setting in client.client_property or ():
        arguments += ["-X", setting]
    if client.command_config is not None:
        arguments += ["--command-config", str(client.command_config)]
    return arguments


def job_commands(
    client: list[str], path: str | None, option: list[str] | None
) -> dict[str, list[str]]:
    """The jobs that pages may start.

    They need no options that the console does not have, and only read.
    """
    pipeline = [sys.executable, "-m", "isotherm.cli.main", "pipeline"]
    commands = {"audit": [*pipeline, "audit", *client, "--json"]}
    if path is not None:
        store = [text for setting in option or () for text in ("-o", setting)]
        commands["sweep"] = [*pipeline, "sweep", "--path", path, *store, *client, "--json"]
    return commands


def _registered_values(
    url: str | None, options: list[str] | None, clock: Clock
) -> RegisteredValues | None:
    """The values of a registry, or None without a registry. It need not answer yet. Raises
    ConfigError for wrong settings and for missing packages."""
    from isotherm.spark.requirements import check_registry_packages
    from isotherm.spark.tables.schema_registry import check_registry, registry_settings

    settings = registry_settings(url, parse_pairs(options))
    if settings is None:
        return None
    from isotherm.storage_view.registered_values import RegisteredValues, with_defaults

    if "@" in urlsplit(settings.url).netloc:
        # Pages show the address, and would show a password in it.
        hint = "--registry-option basic.auth.user.info=NAME:PASSWORD"
        raise ConfigError(f"an address must not contain a password key=--registry hint='{hint}'")
    for value_format in ("avro", "protobuf"):
        check_registry_packages(value_format)
    try:
        check_registry(with_defaults(settings))
    except SchemaRegistryError as error:
        error_console().print(f"isotherm: {error}", soft_wrap=True)
    return RegisteredValues(settings, clock)


def warehouse_tables(
    warehouse: str | None, catalog: str | None, properties: Mapping[str, str]
) -> _WarehouseTables | None:
    """The tables of a warehouse or catalog. None without options. Raises ConfigError for missing
    packages."""
    if warehouse is None and catalog is None and not properties:
        return None
    from isotherm.spark.requirements import check_iceberg

    check_iceberg()
    return _WarehouseTables(catalog, properties, warehouse)


class _WarehouseTables:
    """A `TableReader` of an Iceberg catalog, and of the folders of a warehouse that has no other
    catalog than the one inside it. It imports PyIceberg at the first look."""

    def __init__(
        self, catalog: str | None, properties: Mapping[str, str], warehouse: str | None
    ) -> None:
        self._catalog = catalog
        self._properties = properties
        self._warehouse = warehouse

    def listed(self) -> Sequence[ListedTable]:
        from isotherm.spark.tables.folder_listing import list_folder_tables
        from isotherm.spark.tables.iceberg_catalogs import has_embedded_catalog
        from isotherm.spark.tables.iceberg_listing import list_topic_tables

        folder = self._folder()
        in_folder = [] if folder is None else list_folder_tables(folder)
        has_catalog = folder is None or has_embedded_catalog(folder)
        in_catalog = list_topic_tables(self._opened()) if has_catalog else []
        return sorted(in_catalog + in_folder, key=lambda table: table.name)

    def dead_letters(self, table: tuple[str, str]) -> DeadLetters:
        from isotherm.spark.tables.folder_listing import open_folder_table
        from isotherm.spark.tables.iceberg_listing import read_dead_letters

        table_format, name = table
        folder = self._folder()
        if folder is None or table_format == "iceberg":
            return read_dead_letters(self._opened(), name)
        return open_folder_table(folder, table_format, name).newest_dead_letters()

    def _folder(self) -> ObjectStoreSettings | None:
        """The warehouse, if its tables need no catalog to be listed."""
        from isotherm.remote.storage.settings import ObjectStoreSettings
        from isotherm.spark.options import storage_url

        if self._catalog is not None or self._properties or self._warehouse is None:
            return None
        return ObjectStoreSettings.from_config({"url": storage_url(self._warehouse)})

    def _opened(self) -> Catalog:
        from isotherm.spark.tables.iceberg_catalogs import open_catalog

        return open_catalog(self._catalog, self._properties, self._warehouse)


def _opened(bucket: ObjectStoreSettings) -> ObjectStoreRemoteStorageManager:
    """Open the bucket for reading. A missing folder is an error, and is not created."""
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    return ObjectStoreRemoteStorageManager(
        bucket, store=open_object_store(bucket, create_folder=False)
    )


def _hosts(host: str, allowed: list[str]) -> list[str]:
    """The host names that a request may have. Without this check any website could read the pages
    through a DNS name that points to this address (DNS rebinding). Raises ConfigError for an
    address without a name."""
    if not _is_unspecified(host):
        return [*_LOCAL_NAMES, _named(host), *allowed]
    if not allowed:
        raise ConfigError(
            f"the host name of the pages is not known key=--allow-host host={host}"
            " hint='name it, or * for any'"
        )
    return [*_LOCAL_NAMES, *allowed]


def _credentials(
    file: str | None, host: str, *, without_login: bool
) -> Mapping[bytes, bytes] | None:
    """The credentials of the login. Raises ConfigError for an address that other machines reach,
    unless there is a login or --without-login: the pages show the records of every topic that the
    console may read."""
    if file is not None:
        return read_credentials(file, "--credentials-file")
    if _is_loopback(host) or without_login:
        return None
    raise ConfigError(
        "without a login every client of this address can read all topics key=--credentials-file"
        f" host={host} hint='--without-login, if a proxy authenticates users'"
    )


def _has_identity(certificate: str | None, key: str | None) -> bool:
    """Whether the console has a TLS certificate and key. Raises ConfigError for unusable files."""
    if certificate is None and key is None:
        return False
    if certificate is None or key is None:
        raise ConfigError("a certificate needs its key key=--tls-certificate,--tls-key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        # OpenSSL says of most faults only where in its code it is.
        reason = "they do not match" if "MISMATCH" in (error.reason or "") else "they are not PEM"
        raise ConfigError(
            "a certificate and its key cannot be used key=--tls-certificate,--tls-key"
            f" certificate={certificate} private_key={key} reason='{reason}'"
        ) from None
    except OSError as error:
        raise ConfigError(
            "a certificate and its key cannot be read key=--tls-certificate,--tls-key"
            f" certificate={certificate} private_key={key} reason={error.strerror!r}"
        ) from error
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host
