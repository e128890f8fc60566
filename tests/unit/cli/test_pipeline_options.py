"""Command-line options of jobs become options of the Spark source; and the progress that a job
prints."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from pyspark import SparkContext
from pyspark.status import SparkStageInfo
from rich.console import Console

from isotherm.cli import pipeline_options
from isotherm.cli.pipeline_options import (
    SparkOptions,
    progress,
    source_texts,
    spark_session,
    tasks_of_running_stages,
)
from isotherm.errors import ConfigError
from isotherm.spark.option_parsing import parse_options


def test_command_line_becomes_options_of_the_source() -> None:
    texts = source_texts(
        "s3://bucket", ["key.prefix=kafka/"], "broker:9092", {"security.protocol": "SSL"}
    )
    options = parse_options(texts)
    assert options.path == "s3://bucket"
    assert options.storage_settings == {"key.prefix": "kafka/"}
    assert options.kafka_properties == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SSL",
    }
    assert options.selects_topic("any.topic")


def test_a_choice_of_topics_is_kept() -> None:
    options = parse_options(source_texts("folder", ["Subscribe=flights"], None, {}))
    assert options.named_topics == {"flights"}


@pytest.mark.parametrize("master", ["host:7077", "local[]", "", "mesos://host"])
def test_what_is_no_master_is_refused_before_spark_is_started(master: str) -> None:
    with (
        pytest.raises(ConfigError, match="not the address of a Spark cluster key=master"),
        spark_session(SparkOptions(master)),
    ):
        pass


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=80)
    monkeypatch.setattr(pipeline_options, "error_console", lambda: console)
    with progress("reading metadata") as tell:
        tell("writing the table")
    assert ("reading metadata" in written.getvalue()) == terminal
    assert ("writing the table" in written.getvalue()) == terminal


def test_first_line_comes_before_pyspark_is_imported() -> None:
    program = (
        "import sys\n"
        "from isotherm.cli import pipeline, pipeline_options\n"
        "def shown(text):\n"
        "    sys.exit(f'{text} {\"pyspark\" in sys.modules}')\n"
        "pipeline_options.progress = shown\n"
        "from isotherm.cli.main import main\n"
        "sys.argv = 'isotherm pipeline replay -b localhost:1'.split()\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.stderr == "loading PySpark False\n"


def test_progress_tells_the_tasks_of_the_stages_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Tracker:
        def getActiveStageIds(self) -> list[int]:
            return [3, 4, 5]

        def getStageInfo(self, stage: int) -> SparkStageInfo | None:
            # Stage 5 ended between the two calls.
            counts = {3: (8, 5), 4: (2, 0)}.get(stage)
            return counts and SparkStageInfo(stage, 0, "map", counts[0], 1, counts[1], 0)

    class Context:
        def statusTracker(self) -> Tracker:
            return Tracker()

    assert tasks_of_running_stages() == (0, 0)
    monkeypatch.setattr(SparkContext, "_active_spark_context", Context())
    assert tasks_of_running_stages() == (5, 10)
