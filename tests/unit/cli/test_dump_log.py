"""dump-log on files that Apache Kafka wrote (tests/golden), and on damaged copies of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.record.batch import build_batch
from tests.support.filtered_batch import filtered_batch

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka" / "log"


def dump(*arguments: str | Path) -> tuple[int, list[dict[str, object]], str]:
    """Run dump-log. Returns the exit code, the JSON rows and standard error."""
    result = CliRunner().invoke(app, ["dump-log", "--json", *map(str, arguments)])
    return (
        result.exit_code,
        [json.loads(line) for line in result.stdout.splitlines()],
        result.stderr,
    )


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_dump_segment_shows_each_batch_of_kafkas(codec: str) -> None:
    code, rows, _ = dump(GOLDEN / f"client-{codec}-0" / "00000000000000000000.log")
    assert code == 0
    assert {row["codec"] for row in rows} >= {codec}
    assert all(row["crc_valid"] for row in rows)
    offsets = [row["base_offset"] for row in rows]
    assert offsets == sorted(offsets)
    assert rows[0]["base_offset"] == 0


def test_dump_segment_shows_until_when_tombstones_are_kept(tmp_path: Path) -> None:
    """Kafka's DumpLogSegments prints it as `deleteHorizonMs: OptionalLong[...]`."""
    written = build_batch([(1_700_000_000_000, b"a", None, ())])
    kept = filtered_batch(written, [0], delete_horizon_ms=1_700_086_500_000)
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(kept + build_batch([(1, b"b", b"", ())], base_offset=1))
    code, rows, _ = dump(segment)
    assert code == 0
    assert [row["delete_horizon_ms"] for row in rows] == [1_700_086_500_000, None]
    assert [row["flags"] for row in rows] == [["delete-horizon"], []]


def test_dump_records_shows_transaction_markers() -> None:
    segment = max((GOLDEN / "transactions-0").glob("*.log"))
    code, rows, _ = dump("--records", segment)
    assert code == 0
    assert {"COMMIT", "ABORT"} & {row["key"] for row in rows}


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", ".txnindex"])
def test_dump_index_reads_kafkas(suffix: str) -> None:
    files = [path for path in (GOLDEN / "transactions-0").glob(f"*{suffix}") if path.stat().st_size]
    code, rows, _ = dump(files[-1])
    assert code == 0
    assert rows


def test_dump_leader_epoch_checkpoint_reads_kafkas() -> None:
    code, rows, _ = dump(GOLDEN / "transactions-0" / "leader-epoch-checkpoint")
    assert (code, rows[0]) == (0, {"epoch": 0, "start_offset": 0})


def test_dump_segment_with_a_flipped_bit_says_so_and_goes_on(tmp_path: Path) -> None:
    data = bytearray((GOLDEN / "client-gzip-0" / "00000000000000000000.log").read_bytes())
    data[100] ^= 1
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(data)
    code, rows, error = dump(segment)
    assert code == 3
    assert [row["crc_valid"] for row in rows[:2]] == [False, True]
    assert str(segment) in error


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_records_beside_damaged_ones_are_shown(tmp_path: Path, form: tuple[str, ...]) -> None:
    """The CRC of each batch is right. As a table nothing at all was shown."""
    segment = tmp_path / "00000000000000000000.log"
    marker = build_control_batch_without_key(base_offset=1)
    segment.write_bytes(batch(0, b"first") + marker + batch(2, b"last"))
    result = CliRunner().invoke(app, ["dump-log", "--records", *form, str(segment)])
    assert result.exit_code == 3
    assert "first" in result.stdout
    assert "last" in result.stdout
    assert "no valid key offset=1" in result.stderr
    assert f"position={len(batch(0, b'first'))} file={segment}" in result.stderr


@pytest.mark.parametrize("decoder", ["remote-log-metadata", "cluster-metadata"])
def test_value_that_cannot_be_decoded_is_shown_as_it_is(tmp_path: Path, decoder: str) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(batch(0, b"\x7fnonsense") + batch(1, None))
    code, rows, error = dump("--decode", decoder, segment)
    assert code == 3
    assert [(row["offset"], row["value"]) for row in rows] == [(0, "\x7fnonsense"), (1, None)]
    assert error.count("\n") == 1
    assert "offset=0" in error


def test_files_after_a_damaged_one_are_shown(tmp_path: Path) -> None:
    damaged = tmp_path / "00000000000000000000.snapshot"
    damaged.write_bytes(b"nonsense")
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(batch(0, b"a"))
    code, rows, error = dump(damaged, segment)
    assert (code, [row["base_offset"] for row in rows]) == (3, [0])
    assert f"file={damaged}" in error


def batch(base_offset: int, value: bytes | None) -> bytes:
    return bytes(build_batch([(1, b"k", value, ())], base_offset=base_offset))


def build_control_batch_without_key(base_offset: int) -> bytes:
    return bytes(build_batch([(1, None, b"", ())], base_offset=base_offset, is_control=True))


def test_dump_segment_with_a_torn_tail_says_where(tmp_path: Path) -> None:
    data = (GOLDEN / "client-gzip-0" / "00000000000000000000.log").read_bytes()
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(data[:-5])
    code, rows, error = dump(segment)
    assert code == 3
    assert rows
    assert "position=" in error


def test_dump_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert dump(other)[0] == 2
