"""The daemon of Python workers: it loads modules once, before it forks, and keeps the order of
sys.path right."""

from __future__ import annotations

import subprocess
import sys
import uuid
import zipfile
from pathlib import Path

import numpy.random
import pytest

from isotherm.spark.worker_daemon import installed_first, load, modules_of, reseed_numpy
from isotherm.types import TopicIdPartition
from tests.spark.conftest import make_tier

TASK = """
import sys
from isotherm.spark.worker_daemon import load, modules_of
load(modules_of("pyspark.worker"))
loaded = set(sys.modules)
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.row_schema import full_schema
from isotherm.spark.source import IsothermReader
from isotherm.spark.source_task import read_partition
options = parse_options({"path": sys.argv[1], "subscribe": "flights"})
schema = full_schema(include_headers=True)
[task] = IsothermReader(options, schema).partitions()
loaded |= {"isotherm.spark.driver", "isotherm.spark.driver.batch_query"}  # of the planning
rows = sum(batch.num_rows for batch in read_partition(options, schema, task))
print(rows, *sorted(name for name in set(sys.modules) - loaded if name.startswith("isotherm.")))
"""


def archive(path: Path, **modules: str) -> str:
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in modules.items():
            opened.writestr(f"pyspark/{name}.py", text)
        opened.writestr("pyspark/tests/test_it.py", "not installed")
    return str(path)


def folder(path: Path, **modules: str) -> str:
    (path / "pyspark").mkdir(parents=True)
    for name, text in modules.items():
        (path / "pyspark" / f"{name}.py").write_text(text)
    return str(path)


def test_zip_comes_after_a_folder_with_the_same_modules(tmp_path: Path) -> None:
    zipped = archive(tmp_path / "pyspark.zip", daemon="a = 1", worker="b = 22")
    installed = folder(tmp_path / "installed", daemon="a = 1", worker="b = 22", more="c")
    assert installed_first(["", zipped, installed, "elsewhere"]) == [
        *("", installed, "elsewhere"),
        zipped,
    ]


@pytest.mark.parametrize("modules", [{"daemon": "a = 1"}, {"daemon": "a = 1", "worker": "other"}])
def test_zip_with_other_modules_stays_first(tmp_path: Path, modules: dict[str, str]) -> None:
    zipped = archive(tmp_path / "pyspark.zip", daemon="a = 1", worker="b = 22")
    path = [zipped, folder(tmp_path / "installed", **modules)]
    assert installed_first(path) == path


def test_zip_that_is_none_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_text("broken")
    path = [str(tmp_path / "broken.zip"), str(tmp_path / "absent.zip"), str(tmp_path)]
    assert installed_first(path) == path


@pytest.mark.slow
def test_task_loads_nothing_that_was_not_loaded_before_the_fork(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    tier.add(TopicIdPartition(uuid.UUID(int=1), "flights", 0), range(40))
    command = [sys.executable, "-c", TASK, tier.folder.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.split() == ["40"]


def test_failed_import_is_printed_and_the_next_module_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sys.modules.pop("this", None)
    load(iter(["isotherm.no_such_module", "this"]))
    assert "No module named 'isotherm.no_such_module'" in capsys.readouterr().err
    assert "this" in sys.modules


def test_planners_load_no_kernels_and_other_workers_nothing_of_ours() -> None:
    planner = list(modules_of("pyspark.sql.worker.plan_data_source_read"))
    assert planner[0] == "pyspark.sql.worker.plan_data_source_read"
    assert not any(name.startswith("isotherm.kernels") for name in planner)
    assert list(modules_of("pyspark.other")) == ["pyspark.other"]


def test_tasks_load_nothing_of_the_driver() -> None:
    assert not any("isotherm.spark.driver" in name for name in modules_of("pyspark.worker"))


def test_workers_draw_other_random_numbers() -> None:
    # Forked workers inherit the state of numpy's generator, so without a new seed all draw the
    # same.
    numpy.random.seed(1)
    drawn = numpy.random.random()
    numpy.random.seed(1)
    reseed_numpy()
    assert numpy.random.random() != drawn
