"""Keys of Kafka's that a running broker of Kafka's can change, and that have no effect here.

They are declared, and not only passed over, so that they can be set while the broker runs, with
Kafka's checks, and are described back (docs/decisions/0196). Source: Kafka
DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS.
"""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.config.definition import (
    DOUBLE,
    INT,
    LIST,
    LONG,
    SHORT,
    STRING,
    ConfigType,
    at_least,
    key,
    optional,
)

EVENT_LOOP = "one event loop serves the network"
OPENSSL = "TLS is OpenSSL's, not Java's"
TICKETS = "the system's Kerberos keeps tickets"
OWN_LOGIN = "a broker's own login has no such setting"
NO_STREAMS_GROUPS = "streams groups are not supported"
METRICS = "prometheus.listener serves the metrics"

CLASS: ConfigType[str] = ConfigType("CLASS", str.strip, str)

_BUFFER = 1024 * 1024 + 12
_BUFFER_MIN = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InertConfig:
    num_network_threads: int = key(
        INT,
        3,
        "Threads of a listener that read requests and write answers.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
        no_effect=EVENT_LOOP,
    )
    num_io_threads: int = key(
        INT,
        8,
        "Threads that answer requests.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
        no_effect=EVENT_LOOP,
    )
    background_threads: int = key(
        INT,
        10,
        "Threads for tasks in the background.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
        no_effect=EVENT_LOOP,
    )
    metric_reporters: tuple[str, ...] = key(
        LIST,
        (),
        "Classes that report metrics.",
        dynamic=True,
        no_effect=METRICS,
    )
    cordoned_log_dirs: tuple[str, ...] = key(
        LIST,
        (),
        "Log directories that take no new replicas.",
        dynamic=True,
        no_effect="each directory that is online takes new partitions",
    )
    max_connections_per_ip_overrides: str = key(
        STRING,
        "",
        "Connections of single addresses.",
        dynamic=True,
        no_effect="max.connections.per.ip holds for every address",
    )
    group_coordinator_cached_buffer_max_bytes: int = key(
        INT,
        _BUFFER,
        "Size of the buffers that the group coordinator keeps.",
        check=at_least(_BUFFER_MIN),
        dynamic=True,
        no_effect=EVENT_LOOP,
    )
    share_coordinator_cached_buffer_max_bytes: int = key(
        INT,
        _BUFFER,
        "Size of the buffers that the share coordinator keeps.",
        check=at_least(_BUFFER_MIN),
        dynamic=True,
        no_effect=EVENT_LOOP,
    )
    principal_builder_class: str | None = key(
        optional(CLASS),
        None,
        "Class that makes principals.",
        dynamic=True,
        no_effect="principals are made as Kafka's default class makes them",
    )
    ssl_engine_factory_class: str | None = key(
        optional(CLASS), None, "Class that makes engines of TLS.", dynamic=True, no_effect=OPENSSL
    )
    ssl_keymanager_algorithm: str | None = key(
        optional(STRING), None, "Algorithm of Java's key manager.", dynamic=True, no_effect=OPENSSL
    )
    ssl_trustmanager_algorithm: str | None = key(
        optional(STRING),
        None,
        "Algorithm of Java's trust manager.",
        dynamic=True,
        no_effect=OPENSSL,
    )
    ssl_protocol: str | None = key(
        optional(STRING),
        None,
        "Protocol of Java's TLS context.",
        dynamic=True,
        no_effect="ssl.enabled.protocols names the versions",
    )
    ssl_provider: str | None = key(
        optional(STRING), None, "Java's provider of TLS.", dynamic=True, no_effect=OPENSSL
    )
    ssl_secure_random_implementation: str | None = key(
        optional(STRING), None, "Java's source of random numbers.", dynamic=True, no_effect=OPENSSL
    )
    sasl_kerberos_service_name: str | None = key(
        optional(STRING),
        None,
        "Kerberos principal of the brokers.",
        dynamic=True,
        no_effect=OWN_LOGIN,
    )
    sasl_kerberos_kinit_cmd: str = key(
        STRING, "/usr/bin/kinit", "Path of kinit.", dynamic=True, no_effect=TICKETS
    )
    sasl_kerberos_ticket_renew_window_factor: float = key(
        DOUBLE, 0.8, "When a ticket is renewed.", dynamic=True, no_effect=TICKETS
    )
    sasl_kerberos_ticket_renew_jitter: float = key(
        DOUBLE, 0.05, "Random part of that time.", dynamic=True, no_effect=TICKETS
    )
    sasl_kerberos_min_time_before_relogin: int = key(
        LONG, 60_000, "Time between two logins.", dynamic=True, no_effect=TICKETS
    )
    sasl_login_refresh_window_factor: float = key(
        DOUBLE, 0.8, "When a token is renewed.", dynamic=True, no_effect=OWN_LOGIN
    )
    sasl_login_refresh_window_jitter: float = key(
        DOUBLE, 0.05, "Random part of that time.", dynamic=True, no_effect=OWN_LOGIN
    )
    sasl_login_refresh_min_period_seconds: int = key(
        SHORT, 60, "Time between two tokens.", dynamic=True, no_effect=OWN_LOGIN
    )
    sasl_login_refresh_buffer_seconds: int = key(
        SHORT, 300, "Time before a token's end.", dynamic=True, no_effect=OWN_LOGIN
    )


# Kafka sets these for single brokers only.
PER_BROKER = frozenset(
    {
        "cordoned.log.dirs",
        "principal.builder.class",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "sasl.kerberos.service.name",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.buffer.seconds",
    }
)
