"""The one-line message of a failed Spark job."""

from __future__ import annotations

import pytest

from isotherm.errors import CorruptObjectError, IsothermError, SparkJobError
from isotherm.spark.jobs.job_errors import error_of_job

OF_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/isotherm/spark/jobs/compact_passes.py", line 8, in scan
    raise CorruptObjectError("records cannot be read topic=x")
isotherm.errors.CorruptRecordError: crc does not match

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/isotherm/spark/jobs/compact_passes.py", line 9, in scan
isotherm.errors.CorruptObjectError: records cannot be read topic=x partition=0
"""
OF_PYTHON = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
             ~^~
ZeroDivisionError: division by zero
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1097)
"""
OF_JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'cluster:7077'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3250)
"""
LOST = (
    "Job aborted due to stage failure: Task 2 in stage 3.0 failed 4 times, most recent failure:"
    " Lost task 2.3 in stage 3.0: ExecutorLostFailure (executor 4 exited) Driver stacktrace:"
)


def test_error_of_ours_comes_back_as_what_it_was() -> None:
    error = error_of_job(OF_A_TASK)
    assert type(error) is CorruptObjectError
    assert str(error) == "records cannot be read topic=x partition=0"


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (OF_PYTHON, "ZeroDivisionError: division by zero", "isotherm pipeline --debug"),
        (OF_JAVA, "SparkException: Could not parse Master URL", "--master is local[N]"),
        (LOST, "Job aborted due to stage failure", "spark.executor.memory="),
        ("isotherm.errors.NoSuchError: odd", "NoSuchError: odd", "--debug"),
        ("", "Spark gives no reason", "--debug"),
    ],
)
def test_any_other_error_is_one_line_with_its_reason_and_what_to_do(
    text: str, reason: str, hint: str
) -> None:
    error = error_of_job(text)
    assert type(error) is SparkJobError
    assert isinstance(error, IsothermError)
    assert "\n" not in str(error)
    assert reason in str(error)
    assert hint in str(error)
