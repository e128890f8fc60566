"""Schema ids in front of values. The oracle is Python's struct."""

from __future__ import annotations

import struct
import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.tables.framed_values import NO_FRAME, NO_VALUE, SchemaName, framed

VALUES = (
    st.none()
    | st.binary(max_size=8)
    | st.binary(max_size=8).map(lambda each: b"\0" + each)
    | st.binary(min_size=14, max_size=18).map(lambda each: b"\1" + each)
)


def varint(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))


@given(st.lists(VALUES, max_size=20), st.integers(0, 3))
def test_ids_and_what_is_behind_them(values: list[bytes | None], skipped: int) -> None:
    array = pa.array([b"before"] * skipped + values, pa.binary())[skipped:]
    names, schemas, payloads = framed(array)
    payloads.validate(full=True)
    expected: list[tuple[object, bytes | None]] = []
    for value in values:
        if value is None:
            expected.append((NO_VALUE, None))
        elif len(value) >= 5 and value[0] == 0:
            expected.append((SchemaName(*struct.unpack(">xI", value[:5])), value[5:]))
        elif len(value) >= 17 and value[0] == 1:
            expected.append((SchemaName(uuid.UUID(bytes=value[1:17])), value[17:]))
        else:
            expected.append((NO_FRAME, value))
    found = [names[each] if each >= 0 else each for each in schemas.tolist()]
    assert list(zip(found, payloads.to_pylist(), strict=True)) == expected
    assert list(names) == list(dict.fromkeys(n for n, _ in expected if isinstance(n, SchemaName)))


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1) | st.integers(0, 2) | st.uuids(),
            st.lists(st.integers(-1, 2) | st.integers(-(2**31), 2**31), max_size=4),
            st.binary(max_size=4),
        )
    )
)
def test_indexes_of_messages(values: list[tuple[int | uuid.UUID, list[int], bytes]]) -> None:
    written = [
        (struct.pack(">xI", schema_id) if isinstance(schema_id, int) else b"\1" + schema_id.bytes)
        + b"".join(varint(each) for each in (len(path), *path))
        + payload
        for schema_id, path, payload in values
    ]
    names, schemas, payloads = framed(pa.array(written, pa.binary()), has_path=True)
    payloads.validate(full=True)
    assert [
        (names[each], payload)
        for each, payload in zip(schemas.tolist(), payloads.to_pylist(), strict=True)
    ] == [
        (SchemaName(schema_id, tuple(path or [0])), payload) for schema_id, path, payload in values
    ]


def test_bytes_that_are_no_indexes() -> None:
    frame = b"\0\0\0\0\7"
    for text in (
        b"",
        b"\1",
        b"\x80\1",
        b"\2",
        b"\2\x80",
        b"\4\2",
        b"\x7e" + b"\0" * 62,
        b"\xff" * 80,
        # As many bytes of one number each behind a wrong count as there may be at most.
        b"\1" + b"\0" * 64,
        b"\x80" + b"\0" * 64,
    ):
        schemas = framed(pa.array([frame + text, None], pa.binary()), has_path=True).schemas
        assert schemas.tolist() == [NO_FRAME, NO_VALUE], text
