"""Segments that are compressed and encrypted in the bucket."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from Crypto.PublicKey import RSA
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

KEY_ID = "Archive2026"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("keys")
    private = RSA.generate(2048)
    (folder / "public.pem").write_bytes(private.public_key().export_key())
    (folder / "private.pem").write_bytes(private.export_key(pkcs=8))
    return {
        "encryption.key.pairs": KEY_ID,
        f"encryption.key.pairs.{KEY_ID}.public.key.file": str(folder / "public.pem"),
        f"encryption.key.pairs.{KEY_ID}.private.key.file": str(folder / "private.pem"),
    }


@pytest.fixture
def encrypted_tier(tier, tmp_path: Path, keys: dict[str, str]):
    settings = ObjectStoreSettings.from_config(
        {
            "url": tier.folder.as_uri(),
            "compression.enabled": "true",
            "encryption.enabled": "true",
            "encryption.key.pair.id": KEY_ID,
            "chunk.size": "2000",
            **keys,
        }
    )
    tier.maker = RecordSegmentMaker(
        tmp_path / "encrypted", ObjectStoreRemoteStorageManager(settings), seed=1
    )
    owner = TopicIdPartition(uuid.UUID(int=5), "secret", 0)
    tier.add(owner, range(400))
    tier.add(owner, range(400, 500))
    return tier


def test_encrypted_segments_are_read_with_the_private_key(
    spark: SparkSession, encrypted_tier, keys: dict[str, str]
) -> None:
    options = {name: text for name, text in keys.items() if "public" not in name}
    frame = encrypted_tier.load(
        spark, subscribe="secret", targetBytesPerTask=5000, **options
    ).load()
    rows = {(row.topic, row.partition, row.offset): row.value for row in frame.collect()}
    assert rows == {place: made.value for place, made in encrypted_tier.records.items()}


def test_missing_key_is_named(spark: SparkSession, encrypted_tier, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"encrypted.*encryption\.key\.pairs"):
        encrypted_tier.load(spark, subscribe="secret").load().collect()
    other = RSA.generate(2048).export_key(pkcs=8)
    (tmp_path / "other.pem").write_bytes(other)
    options = {
        "encryption.key.pairs": "other",
        "encryption.key.pairs.other.private.key.file": tmp_path / "other.pem",
    }
    with pytest.raises(PySparkException, match=f"key_pair={KEY_ID} configured=other") as failed:
        encrypted_tier.load(spark, subscribe="secret", **options).load().collect()
    assert "PRIVATE KEY" not in str(failed.value)


def scrubbed(folder: Path, keys: dict[str, str]) -> tuple[int, list[dict[str, Any]]]:
    options = [f"{name}={text}" for name, text in keys.items() if "public" not in name]
    arguments = [part for each in ("subscribe=secret", *options) for part in ("-o", each)]
    command = ["pipeline", "scrub", "--path", str(folder), "--json", *arguments]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.nightly
def test_encrypted_segments_are_scrubbed_with_the_private_key(
    spark: SparkSession, encrypted_tier, keys: dict[str, str]
) -> None:
    code, rows = scrubbed(encrypted_tier.folder, keys)
    assert (code, rows[-1]["scrubbed"]["segments"]) == (0, 2)
    assert rows[-1]["scrubbed"]["batches"] == 50
    path = encrypted_tier.log_path(encrypted_tier.segments[1])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, rows = scrubbed(encrypted_tier.folder, keys)
    found = [(row["kind"], row["start_offset"]) for row in rows if "kind" in row]
    assert (code, found) == (3, [("damaged-object", 400)])
