"""Isotherm's codec against kafka-python's, which has its own generator for the same message
definitions.

kafka-python must decode what Isotherm encodes, and encode it to the same bytes.
"""

from __future__ import annotations

import importlib
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import api_key_map

from isotherm.broker.apis.api_register import SERVED
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import encoder

PEER_MODULES = ("producer", "consumer", "metadata", "admin")


def peer_class(api_key: int, suffix: str) -> type | None:
    """kafka-python's class of a message. None if it has no such class."""
    name = "".join(part.title() for part in api_key_map[api_key].split("_")) + suffix
    with warnings.catch_warnings():
        # kafka-python calls importlib.resources.read_text, which is deprecated, while it is
        # imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        modules = [importlib.import_module(f"kafka.protocol.{module}") for module in PEER_MODULES]
    return next((getattr(module, name) for module in modules if hasattr(module, name)), None)


def is_known_to_peer(api_key, version, suffix):
    peer = peer_class(api_key, suffix)
    return peer is not None and version <= peer.max_version


CASES = [
    pytest.param(load, api_key, version, suffix, id=f"{suffix}-{api_key}-v{version}")
    for api_key, versions in SERVED.items()
    for version in range(versions.min, versions.max + 1)
    for load, suffix in ((request_class, "Request"), (response_class, "Response"))
    # kafka-python reads an ApiVersions response with an error code as version 0, whatever its
    # version.
    if (api_key, suffix) != (ApiKey.API_VERSIONS, "Response")
    and is_known_to_peer(api_key, version, suffix)
]


@pytest.mark.parametrize(("load", "api_key", "version", "suffix"), CASES)
@settings(max_examples=5)
@given(data=st.data())
def test_codec_of_served_message_agrees_with_kafka_python(
    load, api_key, version, suffix, entities, data
):
    peer = peer_class(api_key, suffix)
    message = load(api_key, version)
    entity = data.draw(entities(message))
    encoded = bytearray()
    encoder(message)(entity, encoded)

    decoded = peer.decode(bytes(encoded), version=version)
    decoded._header = None  # the encoder reads it, and decoding does not set it

    assert bytes(decoded.encode(version=version, header=False)) == bytes(encoded)
