"""docs/spark*.md list exactly the declared options and the packages that executors load."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

from isotherm.config.definition import ConfigKey
from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.options import source_option_keys
from isotherm.spark.row_schema import full_schema
from isotherm.spark.source import IsothermReader
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def table_row(name: str, option: ConfigKey) -> str:
    has_default = option.default not in (None, (), "")
    default = f"`{option.format(option.default)}`" if has_default else ""
    return f"| `{name}` | {default} | {option.documentation} |"


def test_page_lists_exactly_the_declared_options() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- options:")
    table, _, _ = rest.partition("<!-- end of options -->")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [table_row(name, option) for name, option in source_option_keys().items()]


# A stand-in for an executor's Python worker: it unpickles a reader and a task, reads all rows, and
# uses the keys.
WORKER = """
import importlib.metadata, json, pickle, sys
reader, partitions = pickle.loads(open(sys.argv[1], "rb").read())
rows = sum(batch.num_rows for partition in partitions for batch in reader.read(partition))
import isotherm.spark.reading.consumed_tail, isotherm.spark.reading.tail
from isotherm.remote.storage.transform.encryption import AesGcmStep, KeyPairFiles, KeyRing
AesGcmStep(bytes(32), b"")
KeyRing(None, {"key": KeyPairFiles(None, sys.argv[2])})
distributions = importlib.metadata.packages_distributions()
loaded = {name for module in sys.modules for name in distributions.get(module.split(".")[0], [])}
print(json.dumps([rows, sorted(loaded)]))
"""


@pytest.mark.slow
def test_page_lists_exactly_what_executors_load(
    storage_settings: ObjectStoreSettings,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
    tmp_path: Path,
) -> None:
    for base, codec in enumerate(CompressionType):
        records = [NewRecord(1, None, b"v" * 99)]
        maker.tier(owner, [build_batch(records, base_offset=base, compression=codec)])
    options = parse_options({"path": storage_settings.url, "subscribe": owner.topic})
    reader = IsothermReader(options, full_schema(include_headers=True))
    (tmp_path / "task").write_bytes(pickle.dumps((reader, reader.partitions())))
    (tmp_path / "key").write_bytes(RSA.generate(2048).export_key())
    worker = [sys.executable, "-c", WORKER, str(tmp_path / "task"), str(tmp_path / "key")]
    rows, loaded = json.loads(subprocess.run(worker, check=True, capture_output=True).stdout)
    assert rows == len(CompressionType)
    required = requires("isotherm") or []
    # The packages that the extra for Spark installs besides PySpark: the clients and the tier.
    ours = {
        re.match(r"[\w-]+", line)[0]
        for line in required
        if "extra ==" not in line or re.search(r"extra == .tier", line)
    }
    page = (PAGE.parent / "spark-cluster.md").read_text()
    listed = page.partition("<!-- needs -->")[2].partition("<!-- end of needs -->")[0]
    # Where the kernels are compiled already, as here, no worker loads their compiler.
    assert set(re.findall(r"`([\w-]+)`", listed)) == ours & {*loaded, "numba"}
