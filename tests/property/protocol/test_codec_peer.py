"""Our codec against kafka-python's, which comes from the same definitions by another way.

What we encode, kafka-python must decode, and encode again to the same bytes.
"""

from __future__ import annotations

import importlib
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import api_key_map

from isotherm.protocol.api_versions import SERVED, ApiKey, request_class, response_class
from isotherm.protocol.codec import encoder

PEER_MODULES = {
    ApiKey.PRODUCE: "producer",
    ApiKey.FETCH: "consumer",
    ApiKey.LIST_OFFSETS: "consumer",
    ApiKey.METADATA: "metadata",
    ApiKey.FIND_COORDINATOR: "metadata",
    ApiKey.API_VERSIONS: "metadata",
    ApiKey.CREATE_TOPICS: "admin",
    ApiKey.DELETE_TOPICS: "admin",
    ApiKey.INIT_PRODUCER_ID: "producer",
    ApiKey.DESCRIBE_CONFIGS: "admin",
}


def peer_class(api_key: int, suffix: str) -> type:
    name = "".join(part.title() for part in api_key_map[api_key].split("_")) + suffix
    with warnings.catch_warnings():
        # importlib.resources.read_text, which kafka-python calls while it is imported
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module(f"kafka.protocol.{PEER_MODULES[api_key]}")
    return getattr(module, name)


CASES = [
    pytest.param(load, api_key, version, suffix, id=f"{suffix}-{api_key}-v{version}")
    for api_key, versions in SERVED.items()
    for version in range(versions.min, versions.max + 1)
    for load, suffix in ((request_class, "Request"), (response_class, "Response"))
    # kafka-python reads any ApiVersions response that carries an error as version 0.
    if (api_key, suffix) != (ApiKey.API_VERSIONS, "Response")
]


@pytest.mark.parametrize(("load", "api_key", "version", "suffix"), CASES)
@settings(max_examples=5)
@given(data=st.data())
def test_codec_of_served_message_agrees_with_kafka_python(
    load, api_key, version, suffix, entities, data
):
    peer = peer_class(api_key, suffix)
    if version > peer.max_version:
        pytest.skip(f"kafka-python knows {peer.__name__} to version {peer.max_version}")
    message = load(api_key, version)
    entity = data.draw(entities(message))
    encoded = bytearray()
    encoder(message)(entity, encoded)

    decoded = peer.decode(bytes(encoded), version=version)
    decoded._header = None  # which a decoded message lacks, but its encoder asks for

    assert bytes(decoded.encode(version=version, header=False)) == bytes(encoded)
