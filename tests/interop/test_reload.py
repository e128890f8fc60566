"""SIGHUP: the broker reads its configuration file again and applies the dynamic settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

TIMEOUT_S = 300
BROKER = ConfigResource(ResourceType.BROKER, "1")


def described(admin: AdminClient) -> dict[str, tuple[str, ConfigSource]]:
    entries = admin.describe_configs([BROKER])[BROKER].result(TIMEOUT_S)
    return {name: (entry.value, ConfigSource(entry.source)) for name, entry in entries.items()}


def set_while_running(admin: AdminClient, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_sighup_applies_dynamic_keys_and_names_the_others(
    broker_process: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "log.retention.ms=1000000\nmax.connections=50\nnum.partitions=3\nremote.log.reader.threads=2\n"
    )
    broker = broker_process(config=file)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    set_while_running(admin, "max.connections", "60")

    # A file may name pools of any size, as at a start; AlterConfigs at most doubles them.
    file.write_text(
        "log.retention.ms=2000000\nmax.connections=70\nnum.partitions=4\nremote.log.reader.threads=9\n"
    )
    broker.reload()
    broker.await_log(
        "configuration is reloaded"
        " applied=log.retention.ms,max.connections,remote.log.reader.threads"
    )
    broker.await_log("changed keys take effect after a restart keys=num.partitions")
    now = described(admin)
    assert now["log.retention.ms"] == ("2000000", ConfigSource.STATIC_BROKER_CONFIG)
    assert now["max.connections"] == ("60", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert now["num.partitions"][0] == "3"
    assert now["remote.log.reader.threads"] == ("9", ConfigSource.STATIC_BROKER_CONFIG)

    file.write_text("log.retention.ms=never\n")
    broker.reload()
    broker.await_log("configuration is unchanged")
    assert described(admin) == now
    assert broker.stop() == 0
