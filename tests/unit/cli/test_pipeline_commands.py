"""What each job's command prints as help, and which arguments it refuses before Spark starts."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from isotherm.cli import pipeline_options
from isotherm.cli.main import EXIT_FAILED, app, main
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

JOBS = ["replay", "project", "verify", "audit", "sweep", "scrub", "rebuild", "compact"]
WRITING = {
    "project": ["--to", "projection", "-b", "127.0.0.1:1"],
    "rebuild": ["--path", "bucket", "-b", "127.0.0.1:1", "--run"],
}


@pytest.mark.parametrize("job", JOBS)
def test_help_of_a_job_has_an_example_and_its_exit_codes(job: str) -> None:
    shown = CliRunner().invoke(app, ["pipeline", job, "--help"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    assert f"isotherm pipeline {job} " in text
    for code in ("Exit codes: 0 ", " · 1 failed", " · 2 wrong options", " · 3 "):
        assert code in text
    assert "--json" in text


def test_the_jobs_are_those_of_the_list() -> None:
    shown = CliRunner().invoke(app, ["pipeline", "--help"]).stdout
    assert all(f" {job} " in shown for job in JOBS)


@pytest.mark.parametrize("topic", sorted(REMOTE_LOG_METADATA_TOPICS))
@pytest.mark.parametrize("job", WRITING)
def test_metadata_topic_of_a_cluster_is_refused_in_one_line(
    job: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The refusal comes first, whatever else is wrong: before any broker is asked and before Spark
    starts."""
    monkeypatch.setattr(pipeline_options, "spark_session", None)
    arguments = ["isotherm", "pipeline", job, *WRITING[job], "--to-topic", topic]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_FAILED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("isotherm: the metadata topic of a cluster is never written to")
    assert printed.err.rstrip().endswith(f"name a topic of your own topic={topic}")
    assert printed.err.count("\n") == 1
