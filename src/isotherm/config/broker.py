"""The keys of a broker, with Kafka's names and defaults.

`server_properties` parses them from texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import (
    BOOLEAN,
    DISTINCT_LIST,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigType,
    any_of,
    at_least,
    at_least_or_negative,
    between,
    config_keys,
    key,
    one_of,
    optional,
)
from isotherm.config.groups import GroupConfig
from isotherm.config.inert import InertConfig
from isotherm.config.listener import (
    DEFAULT_PROTOCOL_MAP,
    ListenerKeys,
    ListenerLayout,
    SecurityProtocol,
    lay_out_listeners,
)
from isotherm.config.process_roles import (
    COMBINED,
    ControllerAddress,
    check_embedded_controller,
    check_quorum,
    has_embedded_controller,
    quorum_addresses,
)
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.security import LISTENER_LIMITS, LISTENER_PREFIX, SecurityConfig
from isotherm.config.share_coordinator import ShareCoordinatorConfig
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import ConfigError

REPLICATION_FACTORS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)

PATHS: ConfigType[tuple[Path, ...]] = ConfigType(
    "LIST",
    lambda text: tuple(Path(item) for item in LIST.parse(text)),
    lambda value: ",".join(str(path) for path in value),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of `isotherm serve`. `topic_defaults` applies to topics without their own
    settings. DescribeConfigs needs the texts by key: `explicit` has those set at the start, and the
    two other mappings those set while running, for all brokers and for this one."""

    node_id: int = key(INT, 1, "Id of this broker.", check=at_least(0), synonyms=["broker.id"])
    process_roles: tuple[str, ...] = key(
        DISTINCT_LIST,
        COMBINED,
        "The roles of this process. broker,controller: a broker with the cluster's only controller"
        " in it. broker: a member of a cluster of Apache Kafka's controllers.",
        check=any_of(*COMBINED),
    )
    controller_quorum_voters: tuple[str, ...] = key(
        LIST,
        (),
        "Controllers as ID@HOST:PORT. With the controller in the process this node alone, if any:"
        " it needs no address.",
    )
    controller_quorum_bootstrap_servers: tuple[str, ...] = key(
        LIST,
        (),
        "Addresses of controllers, of which one at least answers at the start. The controller in"
        " the process needs no address.",
    )
    controller_listener_names: tuple[str, ...] = key(
        DISTINCT_LIST,
        (),
        "Names of the listeners that are a controller's. They are not opened: the controller in the"
        " process needs no port. The protocol of the first is used to connect to controllers"
        " elsewhere.",
    )
    listeners: tuple[str, ...] = key(
        DISTINCT_LIST,
        ("PLAINTEXT://localhost:9092",),
        "Addresses the broker listens on, as NAME://host:port; an empty host is every interface.",
    )
    advertised_listeners: tuple[str, ...] | None = key(
        optional(DISTINCT_LIST),
        None,
        "Addresses that clients are to use, as NAME://host:port, each for the clients of the"
        " listener of that name; the listeners themselves if not set.",
    )
    listener_security_protocol_map: str = key(
        STRING,
        DEFAULT_PROTOCOL_MAP,
        "Protocol of each listener, as NAME:PROTOCOL.",
    )
    inter_broker_listener_name: str | None = key(
        optional(STRING),
        None,
        "Listener that brokers would use among each other; one of those advertised.",
    )
    security_inter_broker_protocol: str = key(
        STRING,
        SecurityProtocol.PLAINTEXT.name,
        "Protocol of that listener, if inter.broker.listener.name is not set: then the listener has"
        " the name of the protocol.",
        check=one_of(*SecurityProtocol.__members__),
    )
    log_dirs: tuple[Path, ...] = key(
        PATHS, (Path("isotherm-data/log"),), "Folders of the local tier.", synonyms=["log.dir"]
    )
    num_partitions: int = key(
        INT, 1, "Partitions of a topic created without a number.", check=at_least(1)
    )
    default_replication_factor: int = key(
        INT, 1, "Replicas of a topic created without a number.", check=at_least(1)
    )
    auto_create_topics_enable: bool = key(
        BOOLEAN, True, "Create a topic when a client requests metadata of one that does not exist."
    )
    delete_topic_enable: bool = key(BOOLEAN, True, "Whether topics can be deleted.")
    socket_request_max_bytes: int = key(
        INT,
        100 * 1024 * 1024,
        "Largest request; a larger one ends its connection.",
        check=at_least(1),
    )
    message_decompressed_max_bytes: int = key(
        INT,
        64 * 1024 * 1024,
        "Largest size of the records of a produced batch when decompressed; a larger one is refused"
        " with MESSAGE_TOO_LARGE. Isotherm's own key. (Kafka has no bound.)",
        check=between(1, 256 * 1024 * 1024),
    )
    queued_max_request_bytes: int = key(
        LONG,
        256 * 1024 * 1024,
        "Bytes of requests in memory over all connections whose clients have logged in; reading"
        " pauses beyond it. What has arrived counts. 0 or less is no bound. (Kafka's default is"
        " -1.)",
    )
    queued_max_unauthenticated_request_bytes: int = key(
        LONG,
        16 * 1024 * 1024,
        "The same for connections before their login. -1 is no bound. Isotherm's own key.",
        check=at_least(-1),
    )
    queued_max_response_bytes: int = key(
        LONG,
        256 * 1024 * 1024,
        "Bytes of answers in memory over all connections. Beyond it fetches return one batch, and"
        " connections that take nothing are ended. -1 is no bound. Isotherm's own key.",
        check=at_least(-1),
    )
    connection_write_buffer_max_bytes: int = key(
        INT,
        1024 * 1024,
        "Bytes of answers that may wait for one slow client before its requests are paused."
        " Isotherm's own key.",
        check=at_least(1),
    )
    max_connections: int = key(
        INT,
        20_000,
        "Connections over all clients; further ones wait to be accepted. With the prefix"
        " listener.name.NAME., those of one listener. (Kafka's default is no bound.)",
        check=at_least(0),
        dynamic=True,
    )
    max_connections_unauthenticated: int = key(
        INT,
        2500,
        "Connections that have not completed their TLS handshake and their login. Above this"
        " number the one that has been silent longest is closed. Isotherm's own key.",
        check=at_least(1),
    )
    connection_authentication_timeout_ms: int = key(
        LONG,
        30_000,
        "Time in which a new connection has to log in; else it is closed. Isotherm's own key.",
        check=at_least(1),
    )
    max_connections_per_ip: int = key(
        INT, INT_MAX, "Connections of one client address.", check=at_least(0), dynamic=True
    )
    max_connection_creation_rate: int = key(
        INT,
        INT_MAX,
        "New connections per second over all listeners, except the one between brokers where"
        " there are others, and over each of them. With the prefix listener.name.NAME., those of"
        " one listener. Connections above this rate wait, as many of a listener as"
        " socket.listen.backlog.size allows.",
        check=at_least(0),
        dynamic=True,
    )
    connections_max_idle_ms: int = key(
        LONG,
        600_000,
        "Idle time after which a connection is closed; never if negative.",
        check=at_least_or_negative(1),
    )
    socket_listen_backlog_size: int = key(
        INT,
        1024,
        "Connections of a listener that may wait to be accepted; the system may allow fewer"
        " (net.core.somaxconn). (Kafka's default is 50.)",
        check=at_least(1),
    )
    fetch_max_bytes: int = key(
        INT, 57_671_680, "Largest answer to a fetch request.", check=at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = key(
        INT, 1000, "Incremental fetch sessions kept at once.", check=at_least(0)
    )
    min_incremental_fetch_session_eviction_ms: int = key(
        LONG,
        120_000,
        "Age from which an incremental fetch session may make room for another.",
        check=at_least(0),
    )
    incremental_fetch_session_cache_partitions_max: int = key(
        INT,
        500_000,
        "Partitions in all incremental fetch sessions; a session that would go beyond is not kept"
        " and its client sends full requests. Isotherm's own key.",
        check=at_least(1),
    )
    max_request_partition_size_limit: int = key(
        INT, 2000, "Partitions in one DescribeTopicPartitions answer.", check=at_least(1)
    )
    delayed_operations_max: int = key(
        INT,
        100_000,
        "The most fetches that wait for data at the same time. Further ones are answered at once"
        " with the data that exists. Isotherm's own key.",
        check=at_least(1),
    )
    producer_id_expiration_ms: int = key(
        INT,
        86_400_000,
        "Idle time after which an idempotent producer is forgotten.",
        check=at_least(1),
        dynamic=True,
    )
    cluster_partitions_max: int = key(
        INT,
        200_000,
        "Partitions of the cluster, of all topics but internal ones, if this broker is its own"
        " controller; further ones are refused with POLICY_VIOLATION. Isotherm's own key. (Kafka"
        " has no bound.)",
        check=at_least(1),
    )
    cluster_acls_max: int = key(
        INT,
        100_000,
        "ACLs of the cluster, if this broker is its own controller; further ones are refused with"
        " POLICY_VIOLATION. Isotherm's own key. (Kafka has no bound.)",
        check=at_least(1),
    )
    producer_ids_per_partition_max: int = key(
        INT,
        1_000_000,
        "Producer ids that a partition remembers; records of a further one are refused with"
        " POLICY_VIOLATION until others expire. Isotherm's own key. (Kafka has no bound.)",
        check=at_least(1),
    )
    log_retention_check_interval_ms: int = key(
        LONG, 300_000, "Time between two checks of retention.", check=at_least(1)
    )
    log_initial_task_delay_ms: int = key(
        LONG,
        30_000,
        "Time after start before the background tasks of the log begin.",
        check=at_least(0),
    )
    log_flush_scheduler_interval_ms: int = key(
        LONG, LONG_MAX, "Time between two checks whether a log must be flushed.", check=at_least(1)
    )
    log_flush_offset_checkpoint_interval_ms: int = key(
        INT, 60_000, "Time between two writes of the recovery-point checkpoint.", check=at_least(1)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = key(
        INT, 60_000, "Time between two writes of the log-start checkpoint.", check=at_least(1)
    )
    num_recovery_threads_per_data_dir: int = key(
        INT,
        2,
        "Threads that load or recover logs of one folder at start, and close them at a stop.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
    )
    num_replica_alter_log_dirs_threads: int | None = key(
        optional(INT),
        None,
        "Threads that move replicas between log directories; one for each directory if not set.",
        check=at_least(1),
    )
    log_dir_open_files_max: int = key(
        INT, 4096, "Segment files kept open for reading. Isotherm's own key.", check=at_least(16)
    )
    quota_window_num: int = key(
        INT, 11, "Windows over which a client's rate is measured.", check=at_least(1)
    )
    quota_window_size_seconds: int = key(INT, 1, "Length of such a window.", check=at_least(1))
    controller_quota_window_num: int = key(
        INT, 11, "Windows over which partitions made and deleted are counted.", check=at_least(1)
    )
    controller_quota_window_size_seconds: int = key(
        INT, 1, "Length of such a window.", check=at_least(1)
    )
    leader_replication_throttled_rate: int = key(
        LONG,
        LONG_MAX,
        "Bytes per second that leaders send of throttled replicas.",
        check=at_least(0),
        dynamic=True,
        internal=True,
    )
    follower_replication_throttled_rate: int = key(
        LONG,
        LONG_MAX,
        "Bytes per second that followers copy of throttled replicas.",
        check=at_least(0),
        dynamic=True,
        internal=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = key(
        LONG,
        LONG_MAX,
        "Bytes per second that are moved between log directories.",
        check=at_least(0),
        dynamic=True,
        internal=True,
    )
    prometheus_listener: str | None = key(
        optional(STRING),
        None,
        "Where Prometheus finds the metrics, under /metrics: PORT of this machine alone, HOST:PORT,"
        " or https://HOST:PORT with listener.name.prometheus.ssl.* or ssl.*; nowhere if not set."
        " Isotherm's own key.",
    )
    prometheus_credentials_file: str | None = key(
        optional(STRING),
        None,
        "File with NAME:PASSWORD on each line, by which clients of the metrics authenticate (HTTP"
        " basic); everyone may read them if not set. Isotherm's own key.",
    )
    prometheus_allowed_hosts: tuple[str, ...] = key(
        LIST,
        (),
        "Names, besides those of the broker's listeners and its machine, by which clients of the"
        " metrics may call it (the header Host); * for any. Isotherm's own key.",
    )
    broker_rack: str | None = key(
        optional(STRING), None, "Rack of this broker.", name="broker.rack"
    )
    remote: RemoteLogManagerConfig = field(default_factory=RemoteLogManagerConfig)
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    share_coordinator: ShareCoordinatorConfig = field(default_factory=ShareCoordinatorConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    inert: InertConfig = field(default_factory=InertConfig)
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    explicit: Mapping[str, str] = field(default_factory=dict)
    dynamic_for_all: Mapping[str, str] = field(default_factory=dict)
    dynamic_for_this: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.log_dirs:
            raise ConfigError("at least one log folder is needed key=log.dirs")
        check_controllers = (
            check_embedded_controller if self.has_embedded_controller else check_quorum
        )
        check_controllers(
            self.controller_quorum_voters, self.controller_quorum_bootstrap_servers, self.node_id
        )
        _ = self.listener_layout  # refuses what Kafka refuses
        self._check_metadata_log_dir()
        self._check_one_replica()
        self._check_idle_time()
        if self.remote.remote_log_storage_system_enable:
            self.topic_defaults.check_retention_rules()
            self._check_metadata_listener()

    def check_zeros(self) -> None:
        """Raise ConfigError, with Kafka's message, for a zero that someone may set who means no
        limit: with no retention all records of all topics would be deleted, and without a
        connection for each address no client could connect. A topic may have no retention.

        The constructor does not do it: values that were stored while running may be zeros of an
        earlier version, and the broker has to start to change them.
        """
        if self.max_connections_per_ip == 0:
            raise ConfigError(
                "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides"
                " property is set, and the overrides have no effect here"
            )
        if self.topic_defaults.retention_ms == 0:
            raise ConfigError(
                "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
            )

    def _check_idle_time(self) -> None:
        """Raise ConfigError for a connection that is idle before it hears that its login failed
        (KafkaConfig.validateValues)."""
        idle_ms = self.connections_max_idle_ms
        delay_ms = self.security.connection_failed_authentication_delay_ms
        if 0 <= idle_ms <= delay_ms:
            raise ConfigError(
                f"connection.failed.authentication.delay.ms={delay_ms} should always be less than"
                f" connections.max.idle.ms={idle_ms} to prevent failed authentication responses"
                " from timing out"
            )

    def _check_one_replica(self) -> None:
        """Raise ConfigError for more than one replica, which the embedded controller cannot create.
        To ignore the key would promise copies that do not exist."""
        if not self.has_embedded_controller:
            return
        for name in REPLICATION_FACTORS:
            text = self.explicit.get(name, "1").strip()
            if text != "1":
                raise ConfigError(
                    "a broker with its controller in it holds the only replica"
                    f" key={name} value={text} expected=1"
                )

    def _check_metadata_listener(self) -> None:
        """Raise ConfigError for a name that is no listener. The key has no effect, but such a name
        is a typing error, and Kafka refuses it."""
        name = self.remote.remote_log_metadata_manager_listener_name
        names = [listener.name for listener in self.listener_layout.brokers]
        if name is not None and name.upper() not in names:
            raise ConfigError(
                "a name of one of the listeners is expected"
                f" key=remote.log.metadata.manager.listener.name value={name}"
                f" listeners={','.join(names)}"
            )

    def _check_metadata_log_dir(self) -> None:
        directory = self.metadata_log_dir
        if directory not in self.log_dirs:
            raise ConfigError(
                "the folder of the metadata log is one of the log folders key=metadata.log.dir"
                f" value={directory} log.dirs={','.join(map(str, self.log_dirs))}"
            )
        if directory != self.log_dirs[0] and self.has_embedded_controller:
            raise ConfigError(
                "the embedded controller keeps the metadata log in the first log folder"
                f" key=metadata.log.dir value={directory} first={self.log_dirs[0]}"
            )

    @property
    def has_embedded_controller(self) -> bool:
        """Whether the controller is in this process. Otherwise the broker is a member of a cluster
        with a quorum of controllers."""
        return has_embedded_controller(self.process_roles)

    @property
    def quorum_addresses(self) -> tuple[ControllerAddress, ...]:
        """The addresses of controllers. Each of them can name the leader of the quorum."""
        return quorum_addresses(
            self.controller_quorum_voters, self.controller_quorum_bootstrap_servers
        )

    @property
    def metadata_log_dir(self) -> Path:
        """The log directory that has the cluster's metadata."""
        text = self.quorum.metadata_log_dir
        return self.log_dirs[0] if text is None else Path(text)

    @property
    def alter_log_dirs_threads(self) -> int:
        """The number of threads that move replicas between log directories."""
        return self.num_replica_alter_log_dirs_threads or len(self.log_dirs)

    @property
    def listener_layout(self) -> ListenerLayout:
        """The listeners that these keys define."""
        return lay_out_listeners(
            ListenerKeys(
                self.listeners,
                self.advertised_listeners,
                self._if_set("listener.security.protocol.map", self.listener_security_protocol_map),
                self.controller_listener_names,
                self.inter_broker_listener_name,
                self._if_set("security.inter.broker.protocol", self.security_inter_broker_protocol),
                self.has_embedded_controller,
            )
        )

    def limits_of(self, listener: str) -> Mapping[str, int]:
        """The connection limits of one listener, by their keys."""
        texts = {**self.explicit, **self.dynamic_for_all, **self.dynamic_for_this}
        limits = {}
        for name in LISTENER_LIMITS:
            field_name, declared = config_keys(BrokerConfig)[name]
            text = texts.get(f"{LISTENER_PREFIX}{listener.lower()}.{name}")
            limits[name] = getattr(self, field_name) if text is None else declared.parse(text)
        return limits

    def security_of(self, listener: str, mechanism: str | None = None) -> SecurityConfig:
        """The security keys of one listener, or of one SASL mechanism of it."""
        texts = {**self.explicit, **self.dynamic_for_this}
        return self.security.for_listener(texts, listener, mechanism)

    def _if_set(self, name: str, value: str) -> str | None:
        _, declared = config_keys(BrokerConfig)[name]
        return value if name in self.explicit or value != declared.default else None
