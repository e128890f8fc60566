"""`isotherm replica`: serve the tiered history of topics to Kafka clients."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli.line_limit import LINES_PER_S
from isotherm.cli.options import ClientProperties, CommandConfig, client_settings
from isotherm.cli.serve import ConfigFile, Overrides, start_logging
from isotherm.config.broker import BrokerConfig
from isotherm.config.layers import (
    environment_properties,
    layer_settings,
    parse_override,
    read_properties,
)
from isotherm.config.secret_files import close_to_others
from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.config.server_properties import parse_broker_config

# Above the ids that operators give to brokers, and that Kafka generates.
NODE_ID = 1_000_000
LISTENER = "PLAINTEXT://localhost:9192"
# A quarter of a broker's: 32 consumers of eight partitions then take 370 to 410 MB in all.
READ_AHEAD_BYTES_MAX = 64 * 1024 * 1024
ARENAS_MAX = 2
# Of glibc's malloc.h.
_M_ARENA_MAX = -8
# Of ReplicaSettings, which the help does not load.
LIST_INTERVAL_S = 60.0


def replica(
    path: Annotated[
        str,
        typer.Option(
            "--path",
            metavar="URL",
            help="The remote tier: s3://bucket/prefix, gs://, az://, file:///folder or a folder.",
        ),
    ],
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream",
            metavar="HOST:PORT",
            help="Brokers of the running cluster whose history is served. Without it, the"
            " bucket's manifests are read.",
        ),
    ] = None,
    tail: Annotated[
        str,
        typer.Option(
            "--tail",
            metavar="proxy|leader|none",
            help="With --upstream, where clients get records that are not tiered yet: from the"
            " replica, which passes them on; from the leader, to which they are sent; or not at"
            " all.",
        ),
    ] = "proxy",
    listener: Annotated[
        list[str] | None,
        typer.Option(
            "--listener",
            metavar="NAME://HOST:PORT",
            help=f"Where clients connect. May be given many times. [default: {LISTENER}]",
        ),
    ] = None,
    node_id: Annotated[
        int,
        typer.Option(
            "--node-id", min=0, help="The id of the replica. No broker of the cluster may have it."
        ),
    ] = NODE_ID,
    peers: Annotated[
        str | None,
        typer.Option(
            "--peers",
            metavar="ID=HOST:PORT[@RACK],...",
            help="Replicas that share the partitions, by their --node-id and the address for"
            " clients. All are given the same list. A consumer with the client.rack of some reads"
            " from these.",
        ),
    ] = None,
    acls: Annotated[
        str | None,
        typer.Option(
            "--acls",
            metavar="upstream|FILE",
            help="Who may read: the ACLs of the cluster, or those of a file with one ACL in JSON a"
            " line. Needed for a listener that other machines reach.",
        ),
    ] = None,
    list_interval_s: Annotated[
        float | None,
        typer.Option(
            "--list-interval-s",
            min=1,
            help="Without --upstream, the seconds between two listings of the bucket, which show"
            f" new segments. [default: {LIST_INTERVAL_S:g}]",
        ),
    ] = None,
    allow_empty: Annotated[
        bool,
        typer.Option(
            "--allow-empty",
            help="Without --upstream, start over a bucket that has no segment of a topic yet.",
        ),
    ] = False,
    config: ConfigFile = None,
    override: Overrides = None,
    client_property: ClientProperties = None,
    command_config: CommandConfig = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Serve the tiered history of topics to any Kafka client, from the bucket.

    With --upstream it stands in front of a running cluster: topics, groups and what lies behind the
    tier are the cluster's. Without it, the bucket's manifests say
    what there is, and groups last as long as the replica. It writes neither to the bucket nor to
    the cluster. Settings have the names of a broker's, such as
    -o rsm.config.s3.endpoint.url=http://localhost:9000. For example:

    isotherm replica --path s3://bucket/kafka --upstream kafka-1:9092
    """
    if tail not in ("proxy", "leader", "none"):
        raise typer.BadParameter("proxy, leader or none", param_hint="--tail")
    if upstream and list_interval_s is not None:
        raise typer.BadParameter(
            "with --upstream, the metadata topic names new segments", param_hint="--list-interval-s"
        )
    if upstream and allow_empty:
        raise typer.BadParameter(
            "a cluster may have no segment yet without it", param_hint="--allow-empty"
        )
    limit_allocator()
    lines = start_logging(log_level, LINES_PER_S)
    close_to_others()
    # As in `isotherm serve`.
    gc.disable()
    from isotherm.broker.cluster.replica_peers import parse_peers
    from isotherm.broker.cluster.replica_settings import ReplicaSettings, Tail
    from isotherm.broker.process import exit_at_once, run
    from isotherm.broker.read_replica import ReplicaNode

    gc.freeze()
    gc.enable()
    scratch = Path(tempfile.mkdtemp(prefix="isotherm-replica-"))

    def read_config() -> BrokerConfig:
        given = _given_settings(config, override)
        checks_access = acls is not None
        return replica_config(path, listener, node_id, scratch, given, checks_access=checks_access)

    client = client_settings(command_config, client_property)
    client["bootstrap.servers"] = upstream
    settings = ReplicaSettings(
        upstream=client if upstream else None,
        tail=Tail(tail),
        acls=acls,
        peers=parse_peers(peers) if peers else {},
        list_interval_s=list_interval_s or LIST_INTERVAL_S,
        allows_empty=allow_empty,
    )

    def make_node(config: BrokerConfig) -> ReplicaNode:
        return ReplicaNode(config, settings)

    try:
        status = run(read_config, make_node)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lines.report()
    exit_at_once(status)


def limit_allocator() -> None:
    """Let all threads share ARENAS_MAX arenas of glibc's allocator. By default each thread gets one
    of its own, up to eight for a processor, and none gives its free memory to the others."""
    if sys.platform != "linux":
        return
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # musl has none
        allocator.mallopt(_M_ARENA_MAX, ARENAS_MAX)


def replica_config(
    path: str,
    listeners: list[str] | None,
    node_id: int,
    scratch: Path,
    given: dict[str, str],
    *,
    checks_access: bool = False,
) -> BrokerConfig:
    """The configuration of a replica of the tier at `path`. `given` overrides the defaults, and
    `listeners` what is given. Raises ConfigError."""
    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.options import storage_url
    from isotherm.spark.tier.tier_settings import detect_layout

    store = {"rsm.config.url": storage_url(path)}
    if "rsm.config.layout" not in given:
        texts = {**given, **store}
        prefix = "rsm.config."
        settings = {k.removeprefix(prefix): v for k, v in texts.items() if k.startswith(prefix)}
        store["rsm.config.layout"] = detect_layout(ObjectStoreSettings.from_config(settings))
    defaults = {
        "node.id": str(node_id),
        "listeners": LISTENER,
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "remote.log.reader.read.ahead.max.bytes": str(READ_AHEAD_BYTES_MAX),
    }
    fixed = {
        **store,
        "log.dirs": str(scratch / "log"),
        "remote.log.storage.system.enable": "true",
        "auto.create.topics.enable": "false",
        "log.cleaner.enable": "false",
    }
    if listeners:
        fixed["listeners"] = ",".join(listeners)
    # No broker connects to a replica, but the key has to name a listener.
    first = {**defaults, **given, **fixed}["listeners"]
    defaults["inter.broker.listener.name"] = first.partition("://")[0]
    if checks_access:
        fixed["authorizer.class.name"] = STANDARD_AUTHORIZER
    return parse_broker_config({**defaults, **given, **fixed})


def _given_settings(config: Path | None, override: list[str] | None) -> dict[str, str]:
    layers = layer_settings(
        [
            (str(config), read_properties(config) if config else {}),
            ("environment", environment_properties(os.environ)),
            ("--override", dict(parse_override(text) for text in override or [])),
        ]
    )
    return {name: entry.value for name, entry in layers.items()}
