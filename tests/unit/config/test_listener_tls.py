"""Which listeners ask clients for certificates (KIP-684)."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from isotherm.config.listener_tls import listener_tls
from isotherm.config.server_properties import parse_broker_config
from tests.support.certificates import issue

REQUIRED = {"ssl.client.auth": "required"}
OWN = {"listener.name.clients.ssl.client.auth": "required"}


@pytest.mark.parametrize(
    ("protocol", "keys", "expected"),
    [
        ("SSL", {}, ssl.CERT_NONE),
        ("SSL", REQUIRED, ssl.CERT_REQUIRED),
        ("SSL", OWN, ssl.CERT_REQUIRED),
        ("SASL_SSL", REQUIRED, ssl.CERT_NONE),
        ("SASL_SSL", OWN, ssl.CERT_REQUIRED),
        ("SASL_SSL", {**OWN, "ssl.client.auth": "none"}, ssl.CERT_REQUIRED),
    ],
)
def test_sasl_listener_asks_for_certificates_by_its_own_key_alone(
    tmp_path: Path, protocol: str, keys: dict[str, str], expected: ssl.VerifyMode
) -> None:
    authority = issue("authority", is_authority=True)
    broker = issue("broker", authority)
    store, trusted = tmp_path / "broker.pem", tmp_path / "authority.pem"
    store.write_bytes(broker.key_pem + broker.certificate_pem)
    trusted.write_bytes(authority.certificate_pem)
    config = parse_broker_config(
        {
            "listeners": "CLIENTS://localhost:0",
            "listener.security.protocol.map": f"CLIENTS:{protocol}",
            "inter.broker.listener.name": "CLIENTS",
            "sasl.enabled.mechanisms": "PLAIN",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            **keys,
        }
    )
    (listener,) = config.listener_layout.brokers
    tls = listener_tls(config, listener)
    assert tls is not None
    assert tls.context.verify_mode == expected
