"""Reads and checks credentials of HTTP basic authentication, from a file with NAME:PASSWORD on each line."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from pathlib import Path

from isotherm.config.secret_files import warn_of_readers
from isotherm.errors import ConfigError


def read_credentials(file: str, key: str) -> Mapping[bytes, bytes]:
    """The passwords by name. Logs a warning if other users may read the file. Raises ConfigError, which names
    the `key` that named the file, and shows none of its content."""
    place = f"key={key} value={file}"
    try:
        path = Path(file)
        lines = path.read_bytes().splitlines()
        warn_of_readers(path)
    except OSError as error:
        raise ConfigError(f"credentials cannot be read {place} reason='{error}'") from error
    credentials: dict[bytes, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, colon, password = line.partition(b":")
        if not (name and colon and password):
            raise ConfigError(f"a line is written NAME:PASSWORD {place} line={number}")
        credentials[name] = password
    if not credentials:
        raise ConfigError(f"there are no credentials {place}")
    return credentials


def is_known(token: bytes, credentials: Mapping[bytes, bytes]) -> bool:
    """Whether `token`, the text after `Basic ` in a request, is a name with its password. It takes the same
    time for a wrong and a right password, so that the time reveals nothing."""
    try:
        name, _, password = base64.b64decode(token, validate=True).partition(b":")
    except binascii.Error:
        return False
    is_right = hmac.compare_digest(credentials.get(name, b""), password)
    return is_right and name in credentials
