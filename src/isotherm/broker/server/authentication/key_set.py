"""The public keys of a provider (JWKS, RFC 7517), read at the start and again while the broker
runs.

They are read again every sasl.oauthbearer.jwks.endpoint.refresh.ms, and soon after a token names an
unknown key, but at most once per READ_PAUSE_S, whatever clients send. A failed read leaves the keys
as they are. It is retried after sasl.oauthbearer.jwks.endpoint.retry.backoff.ms, which doubles up
to its maximum.

The source is a file, or an https URL whose certificate is checked. http is refused, although Kafka
accepts it: an attacker on the network could replace the keys and then sign tokens. Source: Kafka
RefreshingHttpsJwks.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from isotherm.broker.server.authentication.access_token import (
    ALGORITHMS,
    RSA_BITS_MIN,
    VerificationKey,
)
from isotherm.client.https_exchange import bounded, https_answer
from isotherm.clock import Clock
from isotherm.errors import ConfigError

logger = logging.getLogger(__name__)

READ_PAUSE_S = 10.0
# The longest wait of a stop for a read in progress. A slower read ends with the process.
_STOP_TIMEOUT_S = 0.5

_URL_KEY = "sasl.oauthbearer.jwks.endpoint.url"


def check_key_url(url: str) -> None:
    """Raise ConfigError unless keys may be read from this URL."""
    parsed = urllib.parse.urlsplit(url)
    if parsed.scheme == "http":
        raise ConfigError(
            f"keys fetched over http can be forged: use https or file key={_URL_KEY} value={url}"
        )
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost") and parsed.path:
        return
    if parsed.scheme != "https" or not parsed.hostname:
        raise ConfigError(f"expected https://... or file:///... key={_URL_KEY} value={url}")


def read_key_text(url: str, context: ssl.SSLContext) -> bytes:
    """The text at a URL that was checked. Raises OSError or ValueError."""
    parsed = urllib.parse.urlsplit(url)
    if parsed.scheme == "file":
        return bounded(Path(urllib.parse.unquote(parsed.path)).read_bytes())
    return https_answer(url, context)


def parse_key_set(text: bytes) -> list[VerificationKey]:
    """The keys that can verify signatures. Other keys are ignored, since they may have another
    purpose.

    Raises ValueError if there are none.
    """
    try:
        parsed = json.loads(text)
    except RecursionError as error:
        raise ValueError("a key set is nested too deeply") from error
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise ValueError('a key set must be {"keys": [...]}')  # noqa: TRY004 - of the text
    keys = [key for entry in entries if (key := _parse_key(entry)) is not None]
    if not keys:
        raise ValueError(f"a key set has no public key for signatures entries={len(entries)}")
    return keys


def _parse_key(entry: Any) -> VerificationKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kind, key_id = entry.get("kty"), entry.get("kid")
    if not isinstance(kind, str) or kind not in ALGORITHMS or not isinstance(key_id, str | None):
        return None
    try:
        parsed = jwt.PyJWK(entry)
    except jwt.PyJWTError as error:
        logger.info("key is ignored kid=%s reason='%s'", key_id, type(error).__name__)
        return None
    # A curve has one algorithm. An RSA key may be used with any RSA algorithm.
    algorithm = entry.get("alg") if kind == "RSA" else parsed.algorithm_name
    key = parsed.key.public_key() if hasattr(parsed.key, "public_key") else parsed.key
    if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS_MIN:
        logger.warning("key is ignored: it is too short kid=%s bits=%d", key_id, key.key_size)
        return None
    if algorithm is not None and algorithm not in ALGORITHMS[kind]:
        return None
    return VerificationKey(key_id, kind, algorithm, key)


class RefreshingKeys:
    """`find` may be called on any thread.

    Between `start` and `stop` a thread reads the keys again.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], bytes],
        clock: Clock,
        *,
        refresh_s: float,
        retry_s: float,
        retry_s_max: float,
    ) -> None:
        """`read` raises OSError or ValueError. `name` is the source, for errors and the log."""
        self._name = name
        self._read = read
        self._clock = clock
        self._refresh_s = refresh_s
        self._retry_s = retry_s
        self._retry_s_max = max(retry_s, retry_s_max)
        self._keys: Sequence[VerificationKey] = ()
        self._stopping = threading.Event()
        self._read_due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isotherm-token-keys", daemon=True)

    def start(self) -> None:
        """Read the keys. Raises ConfigError if that fails, because no client could log in."""
        try:
            self._keys = parse_key_set(self._read())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the provider's keys cannot be read key={_URL_KEY} value={self._name}"
                f" reason='{error}'"
            ) from error
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._read_due.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def find(self, fits: Callable[[VerificationKey], bool]) -> VerificationKey | None:
        # No lock: the reading thread replaces the sequence as a whole and never changes one.
        for key in self._keys:
            if fits(key):
                return key
        self._read_due.set()
        return None

    def _run(self) -> None:
        failures = 0
        while not self._wait(failures):
            # Before the read: a key that is missed during the read causes another one.
            self._read_due.clear()
            failures = 0 if self._read_again() else failures + 1

    def _wait(self, failures: int) -> bool:
        """Wait until the next read; returns True at a stop."""
        if failures:
            # The exponent is bounded, because a large power does not fit into a float.
            backoff_s = min(self._retry_s * 2 ** min(failures - 1, 30), self._retry_s_max)
            return self._clock.wait(self._stopping, backoff_s)
        # `_read_due` is not waited for here: tokens with unknown keys cause one read per
        # pause, however many come.
        if self._clock.wait(self._stopping, READ_PAUSE_S):
            return True
        rest_s = min(max(self._refresh_s - READ_PAUSE_S, 0), threading.TIMEOUT_MAX)
        self._clock.wait(self._read_due, rest_s)
        return self._stopping.is_set()

    def _read_again(self) -> bool:
        try:
            keys = parse_key_set(self._read())
        except (OSError, ValueError) as error:
            logger.warning(
                "keys cannot be read again, and the earlier ones stay valid source=%s reason='%s'",
                self._name,
                error,
            )
            return False
        self._keys = keys
        logger.info("keys are read again source=%s count=%d", self._name, len(keys))
        return True
