"""A reload applies the keys that can change while running and names the others."""

from __future__ import annotations

from isotherm.config.broker import BrokerConfig
from isotherm.config.reload import reload_config
from isotherm.config.server_properties import parse_broker_config

BEFORE = {
    "node.id": "1",
    "log.retention.hours": "24",
    "max.connections": "100",
    "rsm.config.url": "memory://",
}


def config(**changes: str | None) -> BrokerConfig:
    texts = BEFORE | {name.replace("_", "."): text for name, text in changes.items()}
    return parse_broker_config({name: text for name, text in texts.items() if text is not None})


def test_nothing_changed_changes_nothing() -> None:
    running = config()
    assert reload_config(running, config()) == (running, (), ())


def test_dynamic_keys_are_applied_in_every_group() -> None:
    changes = {"max_connections": "7", "remote_log_reader_threads": "3"}
    reloaded = reload_config(config(), config(**changes, log_retention_hours="1"))
    assert reloaded.applied == (
        "log.retention.ms",
        "max.connections",
        "remote.log.reader.threads",
    )
    assert reloaded.need_restart == ()
    assert reloaded.config.max_connections == 7
    assert reloaded.config.remote.remote_log_reader_threads == 3
    assert reloaded.config.topic_defaults.retention_ms == 3_600_000
    assert reloaded.config.explicit == config(**changes, log_retention_hours="1").explicit


def test_key_that_is_gone_gets_its_default() -> None:
    reloaded = reload_config(config(), config(max_connections=None))
    assert reloaded.config.max_connections == BrokerConfig().max_connections
    assert "max.connections" not in reloaded.config.explicit


def test_other_keys_are_named_and_left_as_they_are() -> None:
    running = config()
    reread = config(node_id="2", rsm_config_url="file:///x", num_partitions="9")
    reloaded = reload_config(running, reread)
    assert reloaded.config == running
    assert reloaded.applied == ()
    assert reloaded.need_restart == ("node.id", "num.partitions", "rsm.config.url")


def test_key_material_of_a_listener_is_applied_and_its_other_keys_are_named() -> None:
    prefix = "listener.name.clients."
    before = parse_broker_config(
        BEFORE | {f"{prefix}ssl.keystore.location": "old", f"{prefix}ssl.truststore.location": "t"}
    )
    after = parse_broker_config(
        BEFORE
        | {
            f"{prefix}ssl.keystore.location": "new",
            f"{prefix}ssl.client.auth": "required",
            "ssl.keystore.location": "of all",
        }
    )
    reloaded = reload_config(before, after)
    assert reloaded.applied == (
        f"{prefix}ssl.keystore.location",
        f"{prefix}ssl.truststore.location",
    )
    assert reloaded.need_restart == (f"{prefix}ssl.client.auth", "ssl.keystore.location")
    security = reloaded.config.security_of("CLIENTS")
    assert (security.ssl_keystore_location, security.ssl_truststore_location) == ("new", None)
    assert security.ssl_client_auth == "none"


def test_limit_of_a_listener_holds_at_once() -> None:
    name = "listener.name.clients.max.connections"
    running, reread = (parse_broker_config({name: text}) for text in ("5", "6"))
    reloaded = reload_config(running, reread)
    assert (reloaded.applied, reloaded.need_restart) == ((name,), ())
    assert reloaded.config.limits_of("CLIENTS")["max.connections"] == 6
