"""`isotherm topics`: create, list, describe, alter and delete topics of any Kafka cluster."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from isotherm.cli.client import (
    REQUEST_TIMEOUT_S,
    admin_client,
    consumer,
    offline_error,
    one_line_errors,
    partitions_of,
    wait_for_all,
)
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
    parse_pairs,
)
from isotherm.cli.output import console, print_rows
from isotherm.cli.topic_storage import describe_storage
from isotherm.errors import RejectedError

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")
app.command(name="describe-storage")(describe_storage)

PARTITIONS_MAX = 100_000
"""librdkafka sends no request for more."""
REPLICAS_MAX = 10_000

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]


@app.command()
@with_groups
def create(
    *,
    name: Name,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    partitions: Annotated[
        int,
        typer.Option(
            min=-1,
            max=PARTITIONS_MAX,
            help="Number of partitions; -1 is the broker's default.",
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            min=-1,
            max=REPLICAS_MAX,
            help="Replicas of each partition; -1 is the broker's default.",
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="KEY=VALUE", help="A topic setting. May be given many times."
        ),
    ] = None,
    client: ClientOptions,
) -> None:
    """Create a topic.

    A topic with unlimited retention whose closed segments move to the remote tier at once:

    isotherm topics create flights --partitions 3 --config remote.storage.enable=true
    --config retention.ms=-1 --config local.retention.ms=1000
    """
    new_topic = NewTopic(name, partitions, replication_factor, config=parse_pairs(config))
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, client.properties)
        wait_for_all(admin.create_topics([new_topic], request_timeout=REQUEST_TIMEOUT_S))
    console().print(f"created topic {name}")


@app.command(name="list")
@with_groups
def list_topics(
    *,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """List the topics with their number of partitions."""
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, client.properties)
        topics = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
    rows = [
        {"topic": name, "partitions": len(topic.partitions)}
        for name, topic in sorted(topics.items())
    ]
    print_rows(["topic", "partitions"], rows, as_json=as_json)


@app.command()
@with_groups
def describe(
    *,
    name: Name,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Show the partitions of a topic with leader, replicas, ISR and offsets, and the settings that
    differ from the defaults.

    A partition without a leader has neither leader nor offsets. Exit code 1 if there is one.
    """
    extra = client.properties
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, extra)
        rows = _partition_rows(bootstrap_server, extra, name)
        settings = _own_settings(admin, name)
    columns = ["topic", "partition", "leader", "replicas", "isr", "earliest_offset"]
    columns += ["latest_offset", "records_at_most"]
    print_rows(columns, rows, as_json=as_json)
    if not as_json:
        words = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
        console().print(f"\nsettings: {words or 'the defaults'}")
    if offline := [row["partition"] for row in rows if row["leader"] is None]:
        raise offline_error({name: offline})


@app.command()
@with_groups
def alter(
    *,
    name: Name,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    partitions: Annotated[
        int | None, typer.Option(help="The new number of partitions, above the present one.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="KEY=VALUE", help="A setting to change. May be given many times."
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="KEY", help="A setting to reset to the broker's default."
        ),
    ] = None,
    client: ClientOptions,
) -> None:
    """Change settings of a topic, or add partitions. What is not named stays as it is.

    isotherm topics alter flights --config local.retention.ms=3600000 --delete-config segment.ms
    """
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in parse_pairs(config).items()
    ] + [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
        for key in delete_config or []
    ]
    if not changes and partitions is None:
        raise typer.BadParameter(
            "nothing to change: give --config, --delete-config or --partitions"
        )
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, client.properties)
        if delete_config:
            _check_known(admin, name, delete_config)
        if changes:
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
            altered = admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
            wait_for_all({name: altered[resource]})
        if partitions is not None:
            grown = NewPartitions(name, partitions)
            wait_for_all(admin.create_partitions([grown], request_timeout=REQUEST_TIMEOUT_S))
    console().print(f"altered topic {name}")


@app.command()
@with_groups
def delete(
    *,
    name: Name,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    client: ClientOptions,
) -> None:
    """Delete a topic, in both tiers. There is no way back."""
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, client.properties)
        wait_for_all(admin.delete_topics([name], request_timeout=REQUEST_TIMEOUT_S))
    console().print(f"deleted topic {name}")


def _partition_rows(
    bootstrap_server: str, extra: dict[str, str], name: str
) -> list[dict[str, Any]]:
    reader = consumer(bootstrap_server, extra)
    try:
        rows = []
        partitions = partitions_of(reader, name)
        placed = reader.list_topics(name, timeout=REQUEST_TIMEOUT_S).topics[name].partitions
        for partition in partitions:
            described = placed[partition.partition]
            is_led = described.leader >= 0
            low, high = (
                # Without a leader the client would wait for one for ever.
                reader.get_watermark_offsets(partition, timeout=REQUEST_TIMEOUT_S)
                if is_led
                else (None, None)
            )
            rows.append(
                {
                    "topic": name,
                    "partition": partition.partition,
                    "leader": described.leader if is_led else None,
                    "replicas": list(described.replicas),
                    "isr": list(described.isrs),
                    "earliest_offset": low,
                    "latest_offset": high,
                    # Transaction markers and compaction leave offsets without a record.
                    "records_at_most": None if low is None or high is None else high - low,
                }
            )
        return rows
    finally:
        reader.close()


def _check_known(admin: AdminClient, name: str, keys: list[str]) -> None:
    """Raise RejectedError for a key that the brokers do not have: they delete it without a word, as
    Kafka's do."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    described = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    try:
        config = described[resource].result(REQUEST_TIMEOUT_S)
    except KafkaException:
        return  # who may change a topic need not have the right to describe it
    for key in keys:
        if key not in config:
            nearest = difflib.get_close_matches(key, list(config), n=1)
            hint = f" nearest={nearest[0]}" if nearest else ""
            raise RejectedError(f"the topic has no such key key={key} topic={name}{hint}")


def _own_settings(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    described = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    entries = described[resource].result(REQUEST_TIMEOUT_S)
    return {entry.name: entry.value for entry in entries.values() if not entry.is_default}
