"""Parses and checks listeners: the broker's addresses, their protocols, and the advertised
addresses.

Pure. The rules, their order and their messages are Kafka's. Source: Kafka SocketServerConfigs,
AbstractKafkaConfig, KafkaConfig.validateValues.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from isotherm.errors import ConfigError


class SecurityProtocol(enum.IntEnum):
    """A security protocol, with its id in a broker's registration record."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


DEFAULT_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"

# The name may be any text before "://". A name without a protocol in the map is refused later.
_LISTENER = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")

_PORT_MAX = 65535
_NOT_ROUTABLE = "0.0.0.0"  # noqa: S104 - as the operator may write it


class Address(NamedTuple):
    """An address to bind. An empty host means every interface, port 0 any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Listener(NamedTuple):
    """A listener. `advertised` is the address that clients get, where an empty host stands for this
    machine's name, and port 0 for the bound port. If it is None, clients of the listener get no
    address of this broker."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised: Address | None

    def __str__(self) -> str:
        return f"{self.name}://{Address(self.host, self.port)}"


class ListenerKeys(NamedTuple):
    """The values of the listener keys, named like the keys. None if a key is not set."""

    listeners: Sequence[str]
    advertised_listeners: Sequence[str] | None = None
    listener_security_protocol_map: str | None = None
    controller_listener_names: Sequence[str] = ()
    inter_broker_listener_name: str | None = None
    security_inter_broker_protocol: str | None = None
    has_controller: bool = True
    """Whether this process is a controller too, so that it may have controller listeners."""


class ListenerLayout(NamedTuple):
    """The listeners of a process. `brokers` are for clients, in the order of the key; `controllers`
    are controller listeners.

    `inter_broker` is the name of the listener between brokers. `controller_protocol` is the
    protocol of connections to controllers in other processes; None with an embedded controller.
    """

    brokers: tuple[Listener, ...]
    controllers: tuple[Listener, ...]
    inter_broker: str
    controller_protocol: SecurityProtocol | None


def lay_out_listeners(keys: ListenerKeys) -> ListenerLayout:
    """The listeners that the keys define. Raises ConfigError, with Kafka's message, if Kafka would
    not start with these keys."""
    protocols = _protocols_by_name(keys)
    listeners = _parse(keys.listeners, protocols, ports_differ=True)
    advertised = listeners
    if keys.advertised_listeners is not None:
        advertised = _parse(keys.advertised_listeners, protocols, ports_differ=False)
    if keys.has_controller:
        _check_controllers(keys, listeners)
    else:
        _check_controllers_elsewhere(keys, listeners, protocols)
    _check_advertised(keys, listeners, advertised, protocols)
    by_name = {listener.name: listener.advertised for listener in advertised}
    joined = [listener._replace(advertised=by_name.get(listener.name)) for listener in listeners]
    return ListenerLayout(
        tuple(listener for listener in joined if not _is_controllers(listener, keys)),
        tuple(listener for listener in joined if _is_controllers(listener, keys)),
        _inter_broker_name(keys, protocols),
        None if keys.has_controller else protocols[keys.controller_listener_names[0].upper()],
    )


# ---- protocols


def _protocols_by_name(keys: ListenerKeys) -> dict[str, SecurityProtocol]:
    text = keys.listener_security_protocol_map
    protocols = _parse_protocol_map(DEFAULT_PROTOCOL_MAP if text is None else text)
    names = [*keys.controller_listener_names, *map(_name_before_colon, keys.listeners)]
    if text is None and not {"SSL", "SASL_SSL", "SASL_PLAINTEXT"} & set(names):
        for name in keys.controller_listener_names:
            protocols[name] = SecurityProtocol.PLAINTEXT
    return protocols


def _parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """The protocols by listener name. As in Kafka, a repeated name has its last protocol if it is
    written the same way each time, and is refused if only the case differs."""
    by_written_name: dict[str, str] = {}
    for item in re.split(r"\s*,\s*", text) if text else ():
        name, separator, protocol = item.rpartition(":")
        if not separator:
            raise ConfigError(
                "Error parsing configuration property 'listener.security.protocol.map':"
                f" an entry is written NAME:PROTOCOL entry={item!r}"
            )
        by_written_name[name.strip()] = protocol.strip()
    protocols: dict[str, SecurityProtocol] = {}
    for written, protocol in by_written_name.items():
        name = _normalised(written)
        if name in protocols:
            raise ConfigError(
                f"listener is mapped twice key=listener.security.protocol.map listener={name}"
            )
        protocols[name] = _parse_protocol(protocol, "listener.security.protocol.map")
    return protocols


def _parse_protocol(text: str, key: str) -> SecurityProtocol:
    try:
        return SecurityProtocol[text.upper()]
    except KeyError as error:
        raise ConfigError(f"Invalid security protocol `{text}` defined in {key}") from error


def _normalised(name: str) -> str:
    if not name.strip():
        raise ConfigError("The provided listener name is null or empty string")
    return name.upper()


def _name_before_colon(text: str) -> str:
    name, separator, _ = text.partition(":")
    if not separator:
        raise ConfigError(f"Unable to parse a listener name from {text}")
    return name.upper()


# ---- addresses


def _parse(
    texts: Sequence[str], protocols: Mapping[str, SecurityProtocol], *, ports_differ: bool
) -> list[Listener]:
    """Parse listeners.

    Each is advertised at its own address until `advertised.listeners` says otherwise.
    """
    try:
        parsed = [_parse_listener(text, protocols) for text in texts]
        _check_differ(parsed, texts, ports_differ=ports_differ)
    except ConfigError as error:
        raise ConfigError(
            f"Error creating broker listeners from '{_list_text(texts)}': {error}"
        ) from error
    return parsed


def _parse_listener(text: str, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None:
        raise ConfigError(f"Unable to parse {text} to a broker endpoint")
    name, address = _normalised(match[1]), Address(match[2], int(match[3]))
    if name not in protocols:
        raise ConfigError(f"No security protocol defined for listener {name}")
    if not 0 <= address.port <= _PORT_MAX:
        raise ConfigError(f"a port is 0 to {_PORT_MAX} port={address.port}")
    return Listener(name, protocols[name], address.host, address.port, address)


def _check_differ(
    listeners: Sequence[Listener], texts: Sequence[str], *, ports_differ: bool
) -> None:
    if len({listener.name for listener in listeners}) != len(listeners):
        raise ConfigError(
            f"Each listener must have a different name, listeners: {_list_text(texts)}"
        )
    by_port = defaultdict(list)
    for listener in listeners:
        if ports_differ and listener.port:
            by_port[listener.port].append(listener.host)
    for port, hosts in by_port.items():
        if len(hosts) > 1:
            _check_share_a_port(port, hosts, texts)


def _check_share_a_port(port: int, hosts: Sequence[str], texts: Sequence[str]) -> None:
    """Raise ConfigError unless the port has two listeners, one with an IPv4 and one with an IPv6
    address.
    """
    versions = [version for host in hosts if (version := _ip_version(host))]
    listed = f"listeners: {_list_text(texts)}"
    if len(hosts) - len(versions) > 1:
        raise ConfigError(f"Each listener must have a different port, {listed}")
    if len(versions) != 2:
        raise ConfigError(
            "Each listener must have a different port unless exactly one listener has an IPv4"
            f" address and the other IPv6 address, {listed}, port: {port}"
        )
    if len(hosts) != 2 or sorted(versions) != [4, 6]:
        raise ConfigError(
            "If you have two listeners on the same port then one needs to be IPv4 and the other"
            f" IPv6, {listed}, port: {port}"
        )


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _list_text(texts: Sequence[str]) -> str:
    """The list in Java's format, for Kafka's messages."""
    return f"[{', '.join(texts)}]"


# ---- rules that join several keys


def _is_controllers(listener: Listener, keys: ListenerKeys) -> bool:
    return listener.name in keys.controller_listener_names


def _check_controllers(keys: ListenerKeys, listeners: Sequence[Listener]) -> None:
    """Check the controller listeners of a process that is a controller. There may be none, because
    the embedded controller needs no port."""
    names = keys.controller_listener_names
    listener_names = {listener.name for listener in listeners}
    where = "appearing in the 'listeners' configuration when running the KRaft controller role"
    if names and not set(names) & listener_names:
        raise ConfigError(f"controller.listener.names must contain at least one value {where}")
    if not set(names) <= listener_names:
        raise ConfigError(f"controller.listener.names must only contain values {where}")


def _check_controllers_elsewhere(
    keys: ListenerKeys, listeners: Sequence[Listener], protocols: Mapping[str, SecurityProtocol]
) -> None:
    """Check the listener names of controllers in other processes. The protocol of the first name is
    used for connections to them."""
    names, role = keys.controller_listener_names, "when running KRaft with just the broker role"
    if not names:
        raise ConfigError(f"controller.listener.names must contain at least one value {role}")
    if any(_is_controllers(listener, keys) for listener in listeners):
        raise ConfigError(
            "controller.listener.names must not contain a value appearing in the 'listeners'"
            f" configuration {role}"
        )
    for name in names:
        if name.upper() not in protocols:
            raise ConfigError(
                f"Controller listener with name {name.upper()} defined in"
                " controller.listener.names not found in listener.security.protocol.map  (an"
                " explicit security mapping for each controller listener is required if"
                " listener.security.protocol.map is non-empty, or if there are security protocols"
                " other than PLAINTEXT in use)"
            )


def _check_advertised(
    keys: ListenerKeys,
    listeners: Sequence[Listener],
    advertised: Sequence[Listener],
    protocols: Mapping[str, SecurityProtocol],
) -> None:
    advertised_names = [
        listener.name for listener in advertised if not _is_controllers(listener, keys)
    ]
    if not advertised_names:
        raise ConfigError(
            "There must be at least one broker advertised listener."
            " Perhaps all listeners appear in controller.listener.names?"
        )
    if _inter_broker_name(keys, protocols) not in advertised_names:
        raise ConfigError(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners."
            " The valid options based on currently configured listeners are "
            + ",".join(advertised_names)
        )
    names = [listener.name for listener in listeners]
    if not set(advertised_names) <= set(names):
        raise ConfigError(
            "advertised.listeners listener names must be equal to or a subset of the ones defined"
            f" in listeners. Found {','.join(advertised_names)}. The valid options based on the"
            f" current configuration are {','.join(names)}"
        )
    # A controller listener may have 0.0.0.0 if it is not advertised explicitly: no client gets its
    # address.
    is_implied = keys.advertised_listeners is None
    if any(
        listener.host == _NOT_ROUTABLE and not (is_implied and _is_controllers(listener, keys))
        for listener in advertised
    ):
        raise ConfigError(
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0."
            " Use a routable IP address."
        )


def _inter_broker_name(keys: ListenerKeys, protocols: Mapping[str, SecurityProtocol]) -> str:
    if keys.inter_broker_listener_name is None:
        text = keys.security_inter_broker_protocol or SecurityProtocol.PLAINTEXT.name
        return _parse_protocol(text, "security.inter.broker.protocol").name
    if keys.security_inter_broker_protocol is not None:
        raise ConfigError(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be"
            " set."
        )
    name = _normalised(keys.inter_broker_listener_name)
    if name not in protocols:
        raise ConfigError(
            f"Listener with name {name} defined in inter.broker.listener.name not found in"
            " listener.security.protocol.map."
        )
    return name
