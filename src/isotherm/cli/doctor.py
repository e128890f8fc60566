"""`isotherm doctor`: finds problems that would stop a broker or a Spark job here, with advice for
each.

Each check examines one thing, leaves nothing behind, and yields findings. Checks do not depend on
one another, so one broken part does not hide the next.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import importlib.util
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import typer

from isotherm import __version__
from isotherm.cli.options import AsJson, CommandConfig, client_settings
from isotherm.cli.output import console, human_size, print_json
from isotherm.cli.serve import (
    DEFAULT_DATA_DIR,
    ConfigFile,
    DataDir,
    Overrides,
    broker_settings,
    parsed,
)
from isotherm.clock import Clock, SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import NATIVE_STORAGE_MANAGER
from isotherm.errors import ConfigError, IsothermError, RemoteStorageError
from isotherm.extras import BROKER, EXTRA_OF_MODULE, TIER, install_command
from isotherm.kernels import machine_code
from isotherm.segment.file_names import LOCK_NAME

# A broker has about one file open for each partition, and one for each connection.
OPEN_FILES_MIN = 10_000
FREE_BYTES_MIN = 1024**3
# S3 refuses requests if the clocks differ by 15 minutes.
CLOCK_OFFSET_MAX_MS = 60_000

_EXIT_FAILED = 1
_EXIT_CONFIGURATION = 2
_INSTALL_BROKER = install_command(BROKER)
_RIGHTS = (
    "the broker needs the rights to put, get, list and delete objects; on S3: s3:PutObject,"
    " s3:GetObject, s3:DeleteObject, s3:AbortMultipartUpload, s3:ListBucket"
)
_ENDPOINT = "does the store run, and is rsm.config.s3.endpoint.url its address?"
_KEYS = "correct rsm.config.aws.access.key.id and rsm.config.aws.secret.access.key"
# By the first words of a reason (remote/storage/store_reasons.py), or a part of it.
_BUCKET_ADVICE = {
    "SignatureDoesNotMatch": _KEYS,
    "InvalidAccessKeyId": _KEYS,
    "RequestTimeTooSkewed": "correct the clock: timedatectl set-ntp true",
    "ExpiredToken": "renew the credentials",
    "access denied": _RIGHTS,
    "bucket not found": "create the bucket, or correct rsm.config.url",
    "no credentials": f"{_KEYS}, or let the environment have them",
    "certificate not trusted": "set rsm.config.ca.certificates.path to its authority's",
    "not TLS": "begin rsm.config.s3.endpoint.url with http://",
    "TLS expected": "begin rsm.config.s3.endpoint.url with https://",
    "wrong region": "set rsm.config.s3.region to that of the bucket",
    "connection refused": _ENDPOINT,
    "no such host": _ENDPOINT,
    "no answer in time": _ENDPOINT,
    "throttled": "the store asks for fewer requests: try again later",
}


class Outcome(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """The result of a check. `advice` says what to do, and is empty if nothing is to be done.
    `exit_code` is that of the command if this is the worst: see docs/exit-codes.md."""

    check: str
    outcome: Outcome
    found: str
    advice: str = ""
    exit_code: int = 0


class _Broker(NamedTuple):
    """The address of a broker to check, and the file of client properties."""

    address: str
    command_config: Path | None


Check = Callable[[], Iterable[Finding]]


def doctor(
    config: ConfigFile = None,
    override: Overrides = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            help="Also check the broker at this address.",
        ),
    ] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Find problems of this machine that would stop a broker or a Spark job.

    Takes the settings of `isotherm serve`, and checks them and the machine: open files, log
    directories, ports, the bucket with the rights it needs, clocks, compiled kernels, Java and
    PySpark. Each finding says what to do. A small object is put into the bucket and deleted again;
    nothing else is changed. For example:

    isotherm doctor --config server.properties

    Exit codes: 0 nothing failed, a warning alone is 0 · 1 a check failed · 2 a check failed because
    the configuration is wrong.
    """
    clock = SystemClock()
    broker = None if bootstrap_server is None else _Broker(bootstrap_server, command_config)
    findings = []
    for finding in _examine(config, override, data_dir, broker, clock):
        findings.append(finding)
        _print(finding, as_json=as_json)
    if status := max(finding.exit_code for finding in findings):
        raise typer.Exit(status)


def _failed(check: str, error: Exception, advice: str = "") -> Finding:
    status = _EXIT_CONFIGURATION if isinstance(error, ConfigError) else _EXIT_FAILED
    return Finding(check, Outcome.FAILED, str(error), advice, status)


def _examine(
    config: Path | None,
    override: list[str] | None,
    data_dir: Path,
    broker: _Broker | None,
    clock: Clock,
) -> Iterator[Finding]:
    yield Finding("isotherm", Outcome.OK, f"{__version__} on Python {sys.version.split()[0]}")
    yield from check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    checks: list[tuple[str, Check]] = [("broker's packages", check_broker_packages)]
    if importlib.util.find_spec("numba") is not None:
        yield from check_kernels(is_compiled=machine_code.is_anything_kept())
    try:
        settings = parsed(broker_settings(config, override, data_dir))
    except IsothermError as error:
        yield _failed("configuration", error, "correct the key it names")
    else:
        yield Finding("configuration", Outcome.OK, str(config or "the embedded defaults"))
        checks += [
            ("log directories", partial(check_log_dirs, settings.log_dirs)),
            ("listeners", partial(check_listeners, settings)),
            ("remote tier", partial(check_remote_tier, settings, clock)),
        ]
    checks += [("java", _check_java), ("pyspark", _check_pyspark)]
    if broker is not None:
        checks.append(("broker", partial(_check_broker, broker)))
    for name, check in checks:
        try:
            yield from check()
        except (IsothermError, OSError) as error:
            yield _failed(name, error)
        except ModuleNotFoundError as error:
            problem = f"not checked: {error.name} is not installed"
            yield Finding(name, Outcome.WARNING, problem, _INSTALL_BROKER)


# ---- the broker


def check_open_files(limit: int) -> Iterator[Finding]:
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    if limit == resource.RLIM_INFINITY or limit >= OPEN_FILES_MIN:
        yield Finding("open files", Outcome.OK, shown)
    else:
        advice = f"ulimit -n {OPEN_FILES_MIN} (or LimitNOFILE= of the systemd unit)"
        problem = f"{shown}: a file for each partition and connection"
        yield Finding("open files", Outcome.WARNING, problem, advice)


def check_broker_packages() -> Iterator[Finding]:
    missing = [
        module
        for module, extra in EXTRA_OF_MODULE.items()
        if extra in (TIER, BROKER) and importlib.util.find_spec(module) is None
    ]
    if missing:
        problem = f"no broker runs here: without {', '.join(missing)}"
        yield Finding("broker's packages", Outcome.WARNING, problem, _INSTALL_BROKER)
    else:
        yield Finding("broker's packages", Outcome.OK, "installed")


def check_kernels(*, is_compiled: bool) -> Iterator[Finding]:
    if is_compiled:
        yield Finding("kernels", Outcome.OK, "compiled")
    else:
        problem = "not compiled: the first records are slow"
        yield Finding("kernels", Outcome.WARNING, problem, f"{sys.executable} -m isotherm.kernels")


def check_log_dirs(log_dirs: Iterable[Path]) -> Iterator[Finding]:
    for path in log_dirs:
        yield check_folder(f"log directory {path}", path)


def check_folder(check: str, path: Path) -> Finding:
    """Check a folder that a broker writes to, and creates if it does not exist."""
    existing = _nearest_existing(path)
    free = shutil.disk_usage(existing).free
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        is_folder = existing.is_dir()
        advice = (
            f"chown -R {os.getuid()} {existing}" if is_folder else "it is a file: name a folder"
        )
        reason = f"{existing} cannot be written to"
        return Finding(check, Outcome.FAILED, reason, advice, _EXIT_FAILED)
    if free < FREE_BYTES_MIN:
        advice = "free some, or set local.retention.bytes for tiered topics"
        return Finding(check, Outcome.WARNING, f"{human_size(free)} free", advice)
    return Finding(check, Outcome.OK, f"{human_size(free)} free")


def check_listeners(config: BrokerConfig) -> Iterator[Finding]:
    """Check whether each port can be bound. It cannot while a broker with these settings runs,
    which is no fault."""
    runs = any(_is_locked(path / LOCK_NAME) for path in config.log_dirs)
    for listener in config.listener_layout.brokers:
        check = f"listener {listener}"
        if listener.port == 0:
            yield Finding(check, Outcome.OK, "any free port")
            continue
        try:
            _bind(listener.host, listener.port)
        except OSError as error:
            if runs and error.errno == errno.EADDRINUSE:
                result = "in use; a broker with these log directories runs"
                yield Finding(check, Outcome.OK, result)
                continue
            reason = error.strerror or str(error)
            advice = _listener_advice(error, listener.port)
            yield Finding(check, Outcome.FAILED, reason, advice, _EXIT_FAILED)
        else:
            yield Finding(check, Outcome.OK, "free")


def _listener_advice(error: OSError, port: int) -> str:
    if error.errno == errno.EACCES:
        return f"port {port} needs a right that this user lacks: take one from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return (
            "listeners needs a host of this machine, or none for all of them; what clients are"
            " told goes into advertised.listeners"
        )
    return f"which process has it? ss -ltnp 'sport = :{port}'"


def check_remote_tier(config: BrokerConfig, clock: Clock) -> Iterator[Finding]:
    remote = config.remote
    if not remote.remote_log_storage_system_enable:
        result = "off: remote.log.storage.system.enable=false"
        yield Finding("remote tier", Outcome.OK, result)
        return
    if remote.remote_log_storage_manager_class_name != NATIVE_STORAGE_MANAGER:
        result = f"{remote.remote_log_storage_manager_class_name} is not checked"
        yield Finding("remote tier", Outcome.OK, result)
        return
    from isotherm.remote.storage.settings import ObjectStoreSettings

    settings = ObjectStoreSettings.from_config(remote.rsm_config)
    check = f"bucket {settings.url}"
    if settings.scheme == "file":
        yield check_folder(check, Path(url2pathname(urlsplit(settings.url).path)))
        return
    from isotherm.remote.storage.store_check import check_store

    try:
        stored_at_ms = check_store(settings, writes=True)
    except IsothermError as error:
        yield _failed(check, error, bucket_advice(error))
        return
    yield Finding(check, Outcome.OK, "usable")
    if stored_at_ms is not None:
        yield from check_clock(clock.now_ms() - stored_at_ms)


def bucket_advice(error: IsothermError) -> str:
    """What to do about a bucket that cannot be used."""
    cause = error.__cause__
    if not isinstance(cause, RemoteStorageError):
        return "correct the key it names"
    reason = cause.reason
    advices = (advice for words, advice in _BUCKET_ADVICE.items() if words in reason)
    return next(advices, "the store's own log may say more")


def check_clock(offset_ms: int) -> Iterator[Finding]:
    """Check the clock.

    `offset_ms` is the time by which this machine's clock is ahead of the store's.
    """
    seconds = f"{offset_ms / 1000:+.0f} s from the store's"
    if abs(offset_ms) <= CLOCK_OFFSET_MAX_MS:
        yield Finding("clock", Outcome.OK, seconds)
    else:
        advice = "timedatectl set-ntp true: retention and request signatures depend on the clock"
        yield Finding("clock", Outcome.WARNING, seconds, advice)


# ---- Spark, and another broker


def _check_java() -> Iterator[Finding]:
    def check() -> str:
        from isotherm.spark.session import check_java, find_java

        check_java()
        return str(find_java())

    yield from _for_spark("java", check)


def _check_pyspark() -> Iterator[Finding]:
    def check() -> str:
        from isotherm.spark.requirements import check_requirements, installed_pyspark

        check_requirements()
        return str(installed_pyspark())

    yield from _for_spark("pyspark", check)


def _for_spark(check: str, requirement: Callable[[], str]) -> Iterator[Finding]:
    """Check a requirement of Spark. A failure is only a warning, because a broker does not need
    Spark. `requirement` returns a text about what is installed, or raises."""
    try:
        result = requirement()
    except IsothermError as error:
        problem, _, advice = str(error).partition(": ")
        yield Finding(check, Outcome.WARNING, problem, advice or "only Spark needs it")
    else:
        yield Finding(check, Outcome.OK, result)


def _check_broker(broker: _Broker) -> Iterator[Finding]:
    from isotherm.client.broker_probe import check_brokers

    settings = client_settings(broker.command_config, None)
    check_brokers({"bootstrap.servers": broker.address, **settings})
    yield Finding(f"broker {broker.address}", Outcome.OK, "answers")


# ---- looks at the machine


def _nearest_existing(path: Path) -> Path:
    """The nearest existing folder of `path`, in which it is or would be created."""
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def _is_locked(path: Path) -> bool:
    """Whether a broker that runs has locked this file of a log directory."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _bind(host: str, port: int) -> None:
    """Bind the addresses that a broker binds: for the wildcard of IPv6 all of the machine's, and
    none of a family that its kernel lacks."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        None if host in ("", "::") else host,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE,
    ):
        try:
            bound = socket.socket(family, kind, protocol)
        except OSError:
            continue
        with bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)


# ---- what is printed

_STYLES = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "red"}


def _print(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        print_json(finding._asdict())
        return
    out = console()
    out.print(f"{finding.outcome:<8}", style=_STYLES[finding.outcome], end="")
    out.print(f" {finding.check}: {finding.found}")
    if finding.advice:
        out.print(f"         {finding.advice}", style="bold")
