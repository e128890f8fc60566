"""The file of keys of `erase --keys`: each format and encoding, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from isotherm.errors import ConfigError
from isotherm.spark.jobs.erase_keys import keys_digest, read_keys
from isotherm.spark.jobs.erase_selection import Selector


@pytest.mark.parametrize(
    ("name", "content", "encoding", "keys"),
    [
        ("k.txt", b"b\r\na\nb\n", "text", [b"a", b"b"]),
        ("k", "é\n x ".encode(), "text", [b" x ", "é".encode()]),
        ("k.txt", b"a\rb\n", "text", [b"a\rb"]),
        ("k.txt", b"\xef\xbb\xbfb\r\na\r\n", "text", [b"a", b"b"]),
        ("k.txt", b"a\n\xef\xbb\xbf\n", "text", [b"a", b"\xef\xbb\xbf"]),
        ("k.txt", b"00ff\n", "hex", [b"\x00\xff"]),
        ("k.txt", b"\xef\xbb\xbf00ff\n", "hex", [b"\x00\xff"]),
        ("k.txt", b"AP8=\n", "base64", [b"\x00\xff"]),
        ("k.csv", b'n,key\n1,"a,b"\n2,\n', "text", [b"", b"a,b"]),
        ("k.csv", b"\xef\xbb\xbfkey\r\na\r\n", "text", [b"a"]),
        ("k.jsonl", b'\xef\xbb\xbf{"key": "a"}\r\n', "text", [b"a"]),
        ("k.jsonl", b'{"key": "a\\n"}\n{"key": "b", "n": 1}\n', "text", [b"a\n", b"b"]),
    ],
)
def test_keys_are_read_as_bytes(
    tmp_path: Path, name: str, content: bytes, encoding: str, keys: list[bytes]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_keys(tmp_path / name, None, encoding) == keys


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_parquet_has_keys_as_text_or_bytes(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "k.parquet"
    parquet.write_table(pa.table({"key": pa.array(["b", "a", "b"]).cast(kind)}), path)
    assert read_keys(path, None, "text") == [b"a", b"b"]
    # Bytes are the keys, whatever the encoding of texts is.
    expected = [b"a", b"b"] if kind == pa.binary() else None
    if expected is None:
        with pytest.raises(ConfigError, match="encoding=hex"):
            read_keys(path, None, "hex")
    else:
        assert read_keys(path, None, "hex") == expected


@pytest.mark.parametrize(
    ("name", "content", "encoding", "reason"),
    [
        ("k.txt", b"", "text", "the file has no key"),
        ("k.txt", b"a\n\nb\n", "text", "line 2 is empty"),
        ("k.txt", b"\xff\n", "text", "can't decode"),
        ("k.txt", b"0g\n", "hex", "Non-hexadecimal"),
        ("k.txt", b"00\nA\n", "hex", "after_rows=1"),
        ("k.txt", b"A P8=\n", "base64", "base64"),
        ("k.csv", b"id\na\n", "text", "not one column key"),
        ("k.csv", b"key,n,key\na,1,b\n", "text", "not one column key"),
        ("k.csv", b"key\na,b\n", "text", "row 1 has another number of fields"),
        ("k.json", b"{\n", "text", "format=json"),
        ("k.json", b'{"key": 5}\n', "text", "line 1 is no object"),
        ("k.json", b'["a"]\n', "text", "line 1 is no object"),
        ("k.parquet", b"PAR1", "text", "format=parquet"),
    ],
)
def test_file_that_cannot_be_parsed_names_the_place(
    tmp_path: Path, name: str, content: bytes, encoding: str, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as raised:
        read_keys(tmp_path / name, None, encoding)
    assert str(tmp_path / name) in str(raised.value)


def test_parquet_with_another_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.parquet"
    for column, reason in (
        ({"key": [1, 2]}, "neither text nor binary"),
        ({"id": ["a"]}, "no column key"),
        ({"key": ["a", None]}, "a row has no key"),
    ):
        parquet.write_table(pa.table(column), path)
        with pytest.raises(ConfigError, match=reason):
            read_keys(path, None, "text")


def test_digest_tells_selectors_apart_and_names_nothing() -> None:
    assert keys_digest([b"a", b"bc"]) != keys_digest([b"ab", b"c"])
    selectors = [
        Selector(keys=[b"a"]),
        Selector(keys=[b"b"]),
        Selector(where="key = 'a'"),
        Selector(keys=[b"a"], partitions=frozenset({1})),
        Selector(keys=[b"a"], start_offset=1),
        Selector(keys=[b"a"], end_offset=1),
        Selector(keys=[b"a"], start_ms=1),
        Selector(keys=[b"a"], end_ms=1),
    ]
    assert len({selector.digest for selector in selectors}) == len(selectors)
    assert [selector.names_whole_keys for selector in selectors] == [True, True, *6 * [False]]
