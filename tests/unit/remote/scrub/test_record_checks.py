"""The records of many batches against their headers, few or many batches at a time."""

from __future__ import annotations

import pytest

from isotherm.record.batch import CompressionType, build_batch, read_batch_header
from isotherm.record.batch_header import encode_batch
from isotherm.record.batch_table import read_batch_table
from isotherm.remote.scrub import record_checks
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.scrub.record_checks import check_records

START = 1000


@pytest.mark.parametrize("decoded_bytes", [1, 64 * 1024 * 1024])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_each_wrong_batch_is_named(
    monkeypatch: pytest.MonkeyPatch, codec: CompressionType, decoded_bytes: int
) -> None:
    monkeypatch.setattr(record_checks, "DECODED_BYTES", decoded_bytes)
    batches = [
        bytes(build_batch([(5, b"k", b"v", ())] * 2, base_offset=2 * number, compression=codec))
        for number in range(5)
    ]
    for number in (1, 3, 4):
        header = read_batch_header(batches[number])._replace(max_timestamp=6)
        batches[number] = bytes(encode_batch(header, batches[number][61:]))
    data = memoryview(b"".join(batches))
    found = check_records(data, read_batch_table(data)[0], START)
    assert [each.kind for each in found] == [FindingKind.WRONG_TIMESTAMP] * 3
    for each, number in zip(found, (1, 3, 4), strict=True):
        position = START + sum(map(len, batches[:number]))
        expected = f"batch=6 records=5 position={position} base_offset={2 * number} records_count=2"
        assert each.detail.endswith(expected)


def test_no_batches_have_no_problems() -> None:
    assert check_records(memoryview(b""), read_batch_table(b"")[0], 0) == []
