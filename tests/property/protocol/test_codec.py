"""Isotherm's codec against kio's, in both directions, for every message that is served.

kio's reader gets only bytes that these tests encoded.
"""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from isotherm.broker.dispatch.api_register import SERVED
from isotherm.protocol.api_keys import request_class, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError

MESSAGES = [
    pytest.param(load(api_key, version), id=f"{load.__name__[:-6]}-{api_key}-v{version}")
    for api_key, versions in SERVED.items()
    for version in range(versions.min, versions.max + 1)
    for load in (request_class, response_class)
]


def encode(entity) -> bytes:
    out = bytearray()
    encoder(type(entity))(entity, out)
    return bytes(out)


@pytest.mark.parametrize("message", MESSAGES)
@settings(max_examples=8)
@given(data=st.data())
def test_codec_of_served_message_agrees_with_kio(message, entities, data):
    entity = data.draw(entities(message))
    encoded = encode(entity)
    reference = io.BytesIO()
    entity_writer(message)(reference, entity)

    assert encoded == reference.getvalue()
    assert decoder(message)(memoryview(encoded), 0) == (entity, len(encoded))
    assert entity_reader(message)(encoded, 0) == (entity, len(encoded))


@pytest.mark.parametrize("message", MESSAGES)
@settings(max_examples=8)
@given(data=st.data())
def test_decoder_given_truncated_message_raises_protocol_error(message, entities, data):
    encoded = encode(data.draw(entities(message)))
    cut = data.draw(st.integers(0, max(0, len(encoded) - 1)))
    if not encoded:
        return
    with pytest.raises(ProtocolError):
        decoder(message)(memoryview(encoded)[:cut], 0)


@pytest.mark.parametrize("message", MESSAGES)
@settings(max_examples=8)
@given(data=st.data())
def test_decoder_given_mutated_message_gives_value_or_protocol_error(message, entities, data):
    mutated = bytearray(encode(data.draw(entities(message))) or b"\0")
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        entity, position = decoder(message)(memoryview(mutated), 0)
    except ProtocolError:
        return
    assert isinstance(entity, message)
    assert position <= len(mutated)


@pytest.mark.parametrize("message", MESSAGES)
@settings(max_examples=8)
@given(noise=st.binary(max_size=60))
def test_decoder_given_noise_gives_value_or_protocol_error(message, noise):
    try:
        entity, position = decoder(message)(memoryview(noise), 0)
    except ProtocolError:
        return
    assert isinstance(entity, message)
    assert position <= len(noise)
