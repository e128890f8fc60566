"""Isotherm's codec against kio's, in both directions, for every message that is served.

kio's reader gets only bytes that these tests encoded.
"""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from isotherm.broker.apis.api_register import SERVED
from isotherm.protocol.api_keys import request_class, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError

# The classes are loaded in the tests: to load all of them takes seconds, and each worker collects.
MESSAGES = [
    pytest.param(load, api_key, version, id=f"{load.__name__[:-6]}-{api_key}-v{version}")
    for api_key, versions in SERVED.items()
    for version in range(versions.min, versions.max + 1)
    for load in (request_class, response_class)
]


def encode(entity) -> bytes:
    out = bytearray()
    encoder(type(entity))(entity, out)
    return bytes(out)


@pytest.mark.parametrize(("load", "api_key", "version"), MESSAGES)
@settings(max_examples=8)
@given(data=st.data())
def test_codec_of_served_message_agrees_with_kio_and_refuses_damage(
    load, api_key, version, entities, data
):
    """All of it with one entity, because to draw an entity takes longer than the rest."""
    message = load(api_key, version)
    entity = data.draw(entities(message))
    encoded = encode(entity)
    check_kio_agrees(message, entity, encoded)
    if encoded:
        check_truncated(message, encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    mutated = bytearray(encoded or b"\0")
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    check_gives_value_or_protocol_error(message, mutated)
    check_gives_value_or_protocol_error(message, data.draw(st.binary(max_size=60)))


def check_kio_agrees(message, entity, encoded):
    reference = io.BytesIO()
    entity_writer(message)(reference, entity)
    assert encoded == reference.getvalue()
    assert decoder(message)(memoryview(encoded), 0) == (entity, len(encoded))
    assert entity_reader(message)(encoded, 0) == (entity, len(encoded))


def check_truncated(message, truncated):
    with pytest.raises(ProtocolError):
        decoder(message)(memoryview(truncated), 0)


def check_gives_value_or_protocol_error(message, content):
    try:
        entity, position = decoder(message)(memoryview(content), 0)
    except ProtocolError:
        return
    assert isinstance(entity, message)
    assert position <= len(content)
