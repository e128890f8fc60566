"""The TLS versions and cipher suites that a listener offers, probed without a TLS library."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest

from isotherm.broker.server.net.connection import Connection
from isotherm.broker.server.net.server import Server
from isotherm.clock import SystemClock
from isotherm.config.server_properties import parse_broker_config
from oracle.tls_offers import SUITES, SUITES_OF_1_3, VERSIONS, offered
from tests.support.certificates import issue
from tests.support.tls_table import KEYS, offers_of_page


class Nothing:
    def handle_frame(self, frame: memoryview, connection: Connection) -> list[bytes]:
        return []


def serve_on_a_thread(texts: dict[str, str]) -> Iterator[dict[str, str]]:
    """Serve on a thread of its own. Yields the addresses by listener."""
    addresses: dict[str, str] = {}
    ready, ended = threading.Event(), threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Server(parse_broker_config(texts), loop, SystemClock())
        for endpoint in await server.bind():
            addresses[endpoint.listener_name] = f"127.0.0.1:{endpoint.port}"
        await server.serve(Nothing())
        ready.set()
        await loop.run_in_executor(None, ended.wait)
        await server.stop(5)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait(300)
    yield addresses
    ended.set()
    thread.join()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("keys")
    texts = {
        "listeners": "EC://127.0.0.1:0,RSA://127.0.0.1:0",
        "listener.security.protocol.map": "EC:SSL,RSA:SSL",
        "inter.broker.listener.name": "EC",
        "ssl.keystore.type": "PEM",
    }
    for name in KEYS:
        path = issue("localhost", with_rsa=name == "RSA").write_pem(folder / f"{name}.pem")
        texts[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(path)
    for addresses in serve_on_a_thread(texts):
        yield {name: offered(address) for name, address in addresses.items()}


def test_old_versions_are_not_offered(found: dict[str, list[str]]) -> None:
    for offers in found.values():
        assert [offer for offer in offers if offer in VERSIONS] == ["TLSv1.2", "TLSv1.3"]


def test_suites_have_ephemeral_keys_and_none_is_broken(found: dict[str, list[str]]) -> None:
    for key, offers in found.items():
        suites = [offer for offer in offers if offer in SUITES]
        assert suites
        assert all("DHE" in suite for suite in suites), suites
        assert not re.search("3DES|RC4|DES_|EXPORT|NULL|anon", " ".join(suites))
        assert any(
            f"ECDHE_{'ECDSA' if key == 'EC' else 'RSA'}_WITH_AES" in suite for suite in suites
        )
        assert {offer for offer in offers if offer in SUITES_OF_1_3} >= set(list(SUITES_OF_1_3)[:3])


def test_page_has_what_is_offered(found: dict[str, list[str]]) -> None:
    """Another build of OpenSSL may offer less than the page says, never more."""
    for key in KEYS:
        assert set(found[key]) <= offers_of_page("Isotherm", key)
