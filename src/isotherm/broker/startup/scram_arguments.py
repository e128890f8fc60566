"""Parses SCRAM credentials in command arguments, in the format of `--add-scram` of
kafka-storage.sh. Pure.

    SCRAM-SHA-256=[name=alice,password=alice-secret]
    SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]

Kafka's errors repeat the argument. The errors here do not, because it contains a password.
Source: Kafka ScramParser.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
from collections.abc import Iterable

from isotherm.broker.metadata.access.scram_credential import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
    salt_password,
)
from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.errors import ConfigError

_BY_NAME = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}
_OPTIONS = ("name", "salt", "iterations", "password", "saltedpassword")
SALT_SIZE = 32
"""Bytes of a salt that the user does not give."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


def parse_scram_arguments(
    arguments: Iterable[str], rng: random.Random
) -> list[UserScramCredentialRecord]:
    """The records of the credentials. Raises ConfigError, in Kafka's words without secrets, for a
    malformed argument."""
    return [_parse(argument.strip(), rng) for argument in arguments]


def _parse(argument: str, rng: random.Random) -> UserScramCredentialRecord:
    name, equals, text = argument.partition("=")
    if not equals:
        raise ConfigError("Failed to find equals sign in SCRAM argument")
    mechanism = _BY_NAME.get(name)
    if mechanism is None:
        raise ConfigError(
            f"The add-scram mechanism {name} is not supported. supported={','.join(_BY_NAME)}"
        )
    if not text.startswith("["):
        raise ConfigError("Expected configuration string to start with [")
    if not text.endswith("]"):
        raise ConfigError("Expected configuration string to end with ]")
    options = _parse_options(text[1:-1])
    if "name" not in options:
        raise ConfigError("You must supply 'name' to add-scram")
    salt = _decoded(options, "salt") if "salt" in options else None
    iterations = _parse_iterations(mechanism, options.get("iterations"))
    if "password" in options:
        salt = rng.randbytes(SALT_SIZE) if salt is None else salt
        salted = salt_password(mechanism, options["password"], salt, iterations)
    elif "saltedpassword" not in options:
        raise ConfigError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    elif salt is None:
        raise ConfigError("You must supply 'salt' with 'saltedpassword' to add-scram")
    else:
        salted = _decoded(options, "saltedpassword")
    credential = credential_of(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        name=options["name"], mechanism=mechanism, **credential._asdict()
    )


def _parse_options(text: str) -> dict[str, str]:
    options = {}
    for part in text.rstrip(",").split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError("No equals sign found in SCRAM component")
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        options[name] = value
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(
            f"Unknown SCRAM configurations: {', '.join(unknown)} known={','.join(_OPTIONS)}"
        )
    return options


def _parse_iterations(mechanism: ScramMechanism, text: str | None) -> int:
    if text is None:
        return ITERATIONS_MIN
    if _INTEGER.fullmatch(text) is None:
        raise ConfigError(f"Failed to parse iterations count: {text}")
    iterations = int(text)
    bound = None
    if iterations < ITERATIONS_MIN:
        bound = f">= {ITERATIONS_MIN}"
    elif iterations > ITERATIONS_MAX:
        bound = f"<= {ITERATIONS_MAX}"
    if bound is not None:
        raise ConfigError(
            f"The 'iterations' value must be {bound} for add-scram using {mechanism.name}"
        )
    return iterations


def _decoded(options: dict[str, str], name: str) -> bytes:
    text = options[name]
    try:
        # Java also decodes text without padding.
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"Failed to decode given {name}, which is Base64") from error
