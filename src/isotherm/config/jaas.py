"""Parses the text of `sasl.jaas.config`: a login module and its options. Pure.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="admin" password="secret" user_admin="secret" user_alice="hers";

The class is not loaded; its name only decides what the options mean. Errors never show an option's
value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from isotherm.errors import ConfigError

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"

_FLAGS = "required|requisite|sufficient|optional"
_ENTRY = re.compile(
    rf"\s*(?P<module>[\w.$]+)\s+(?P<flag>{_FLAGS})(?P<options>.*);\s*", re.DOTALL | re.IGNORECASE
)
_OPTION = re.compile(r"""\s+([\w.\-@]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"';]+)""")

_USER_PREFIX = "user_"


class LoginModule(NamedTuple):
    name: str
    options: Mapping[str, str]


def parse_login_module(text: str, place: str) -> LoginModule:
    """Parse a login module. Raises ConfigError, which contains `place` (such as `file=x`) and none
    of the text, because that has passwords."""
    entry = _ENTRY.fullmatch(text)
    if entry is None:
        raise _unparsable(place)
    options, position = {}, 0
    rest = entry["options"]
    while position < len(rest.rstrip()):
        option = _OPTION.match(rest, position)
        if option is None:
            raise _unparsable(place)
        options[option[1]] = _unquoted(option[2])
        position = option.end()
    return LoginModule(entry["module"], options)


def plain_passwords(text: str | None, listener: str) -> Mapping[str, str]:
    """The passwords of the users of SASL/PLAIN, by name. Raises ConfigError if `text` has no PLAIN
    module."""
    if text is None:
        raise ConfigError(
            "a listener with SASL/PLAIN has users"
            f" key=listener.name.{listener.lower()}.plain.sasl.jaas.config"
        )
    module = parse_login_module(text, f"listener={listener}")
    if module.name != PLAIN_MODULE:
        raise ConfigError(
            "another login module is expected"
            f" key=listener.name.{listener.lower()}.plain.sasl.jaas.config expected={PLAIN_MODULE}"
        )
    return {
        name.removeprefix(_USER_PREFIX): value
        for name, value in module.options.items()
        if name.startswith(_USER_PREFIX)
    }


def _unquoted(text: str) -> str:
    if text[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _unparsable(place: str) -> ConfigError:
    return ConfigError(
        f'a login module is written MODULE required KEY="VALUE" ...; key=sasl.jaas.config {place}'
    )
