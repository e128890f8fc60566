"""Reads and checks credentials of HTTP basic authentication, from a file with NAME:PASSWORD on each
line.

`HttpLogins` bounds how many passwords can be tried. A refused try waits for nothing: the client
gets the time after which it may try again, so that tries hold neither threads nor connections.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isotherm.clock import Clock
from isotherm.config.secret_files import warn_of_readers
from isotherm.errors import ConfigError


def read_credentials(file: str, key: str) -> Mapping[bytes, bytes]:
    """The passwords by name. Logs a warning if other users may read the file. Raises ConfigError,
    which names the `key` that named the file, and shows none of its content."""
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
    """Whether `token`, the text after `Basic ` in a request, is a name with its password. It takes
    the same time for a wrong and a right password, so that the time reveals nothing."""
    try:
        name, _, password = base64.b64decode(token, validate=True).partition(b":")
    except binascii.Error:
        return False
    is_right = hmac.compare_digest(credentials.get(name, b""), password)
    return is_right and name in credentials


FAILURES_FREE = 10
"""Failed logins of an address, within FAILURES_FORGOTTEN_S, that are followed by no delay."""
DELAY_S_FIRST = 1.0
DELAY_S_MAX = 32.0
FAILURES_FORGOTTEN_S = 600.0
FAILURES_OVER_ALL_BURST = 60.0
FAILURES_OVER_ALL_PER_S = 1.0
"""Above it no address may try, apart from those that have logged in before."""
ADDRESSES_MAX = 1024
"""The least recently used ones are forgotten."""
_IPV6_NETWORK_BITS = 64


class LoginResult(NamedTuple):
    """With `wait_s` above 0 the credentials were not looked at: the client may try again after
    so many seconds.
    """

    is_granted: bool
    wait_s: int = 0


@dataclass(slots=True)
class _Address:
    failures: int = 0
    failed_last_s: float = -math.inf
    has_logged_in: bool = False

    def tries_again_s(self) -> float:
        """The time from which on the address may try."""
        beyond = self.failures - FAILURES_FREE
        if beyond <= 0:
            return -math.inf
        # The exponent is bounded before the power, which would overflow.
        return self.failed_last_s + min(math.ldexp(DELAY_S_FIRST, min(beyond - 1, 16)), DELAY_S_MAX)


class HttpLogins:
    """The logins of one endpoint. One thread only.

    After FAILURES_FREE failures an address waits after each further one, twice as long each time,
    up to DELAY_S_MAX. A success takes no failure back, or a user's logins would let others at its
    address try without end. Addresses of one IPv6 network of 64 bits count as one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._over_all = FAILURES_OVER_ALL_BURST
        self._filled_s = clock.monotonic_s()

    def attempt(
        self, token: bytes, credentials: Mapping[bytes, bytes], client_address: str
    ) -> LoginResult:
        """Try to log in with `token`, the text after `Basic ` in a request."""
        now_s = self._clock.monotonic_s()
        network = _network_of(client_address)
        state = self._addresses.get(network) or _Address()
        wait_s = self._wait_s(state, now_s)
        if wait_s > 0:
            return LoginResult(is_granted=False, wait_s=math.ceil(wait_s))
        is_granted = is_known(token, credentials)
        if is_granted:
            state.has_logged_in = True
        else:
            is_old = now_s - state.failed_last_s > FAILURES_FORGOTTEN_S
            state.failures = 1 if is_old else state.failures + 1
            state.failed_last_s = now_s
            self._over_all = max(0.0, self._over_all - 1)
        self._addresses[network] = state
        self._addresses.move_to_end(network)
        if len(self._addresses) > ADDRESSES_MAX:
            self._addresses.popitem(last=False)
        return LoginResult(is_granted)

    def _wait_s(self, state: _Address, now_s: float) -> float:
        passed_s, self._filled_s = now_s - self._filled_s, now_s
        filled = self._over_all + passed_s * FAILURES_OVER_ALL_PER_S
        self._over_all = min(filled, FAILURES_OVER_ALL_BURST)
        own_s = state.tries_again_s() - now_s
        if state.has_logged_in:
            return own_s
        return max(own_s, (1 - self._over_all) / FAILURES_OVER_ALL_PER_S)


def _network_of(client_address: str) -> str:
    try:
        # Without the scope of a link-local address.
        address = ipaddress.ip_address(client_address.partition("%")[0])
    except ValueError:
        return client_address
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
