"""TLS cipher suites by their names in Java and IANA, which `ssl.cipher.suites` uses.

A rule derives OpenSSL's names, for the suites that both Java and OpenSSL have. Python's ssl module
cannot select among the suites of TLS 1.3. So either all three are offered, or, if none is named,
TLS 1.3 is not offered.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Sequence

from isotherm.errors import ConfigError

TLS_1_3_SUITES = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_KEY = "ssl.cipher.suites"
_OF_TLS_1_2 = re.compile(
    r"TLS_(?P<exchange>ECDHE_ECDSA|ECDHE_RSA|DHE_RSA|RSA)_WITH_(?:"
    r"(?P<chacha>CHACHA20_POLY1305)_SHA256|AES_(?P<bits>128|256)_(?P<mode>GCM|CBC)_(?P<hash>SHA\d*))"
)


def openssl_name(suite: str) -> str | None:
    """OpenSSL's name of a TLS 1.2 suite; None for an unknown suite."""
    found = _OF_TLS_1_2.fullmatch(suite)
    if found is None:
        return None
    parts = [] if found["exchange"] == "RSA" else found["exchange"].split("_")
    if found["chacha"]:
        parts += found["chacha"].split("_")
    else:
        parts.append(f"AES{found['bits']}")
        if found["mode"] == "GCM":
            parts.append("GCM")
        parts.append(found["hash"])
    return "-".join(parts)


def restrict_suites(
    context: ssl.SSLContext, suites: Sequence[str], versions: Collection[ssl.TLSVersion]
) -> None:
    """Offer only these suites, and only those of `versions` that have one of them.

    Raises ConfigError, which names the suites that cannot be offered or cannot be left out.
    """
    of_1_3 = TLS_1_3_SUITES & set(suites)
    names = {suite: openssl_name(suite) for suite in suites if suite not in TLS_1_3_SUITES}
    usable = set(versions)
    if not of_1_3:
        usable.discard(ssl.TLSVersion.TLSv1_3)
    elif of_1_3 != TLS_1_3_SUITES and ssl.TLSVersion.TLSv1_3 in usable:
        raise ConfigError(
            f"TLS 1.3 is offered with all of its suites, or not at all key={_KEY}"
            f" missing={','.join(sorted(TLS_1_3_SUITES - of_1_3))}"
        )
    if names:
        known = [name for name in names.values() if name is not None]
        offered = _offer(context, known)
        unknown = sorted(suite for suite, name in names.items() if name not in offered)
        if unknown:
            raise ConfigError(
                f"cipher suites are not known, or not supported here key={_KEY}"
                f" suites={','.join(unknown)} openssl='{ssl.OPENSSL_VERSION}'"
            )
    else:
        usable.discard(ssl.TLSVersion.TLSv1_2)
    if not usable:
        raise ConfigError(
            f"no protocol of ssl.enabled.protocols has one of the suites key={_KEY}"
            f" value={','.join(suites)}"
        )
    context.minimum_version, context.maximum_version = min(usable), max(usable)


def _offer(context: ssl.SSLContext, names: Sequence[str]) -> set[str]:
    """Offer suites; returns the names of those that OpenSSL has."""
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        return set()
    return {str(each["name"]) for each in context.get_ciphers()}
