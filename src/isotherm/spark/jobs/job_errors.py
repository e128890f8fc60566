"""Turns the failure of a Spark job into one of Isotherm's errors.

Tasks raise in other processes. The driver gets a text with a traceback of Python, of Java, or both.
An Isotherm error in the text gets its class back. Anything else becomes a SparkJobError with the
last message of Python or Spark, and a hint if the cause is known.
"""

from __future__ import annotations

import re

from isotherm import errors
from isotherm.errors import IsothermError, SparkJobError

_OURS = re.compile(r"^isotherm\.errors\.(\w+): (.*)$", re.MULTILINE)
# The last line of a Python traceback: the only one without indentation.
_PYTHONS = re.compile(r"^(\w[\w.]*(?:Error|Exception|Interrupt|Exit)): (.*)$", re.MULTILINE)
_JAVAS = re.compile(r"^\s*(?:Caused by: |: )?((?:\w+\.){2,}\w+): (.*)$", re.MULTILINE)
_REASON_SIZE_MAX = 400

# Messages of Spark, and hints. The first match counts.
_HINTS = (
    (
        re.compile(r"Could not parse Master URL|Invalid master URL", re.IGNORECASE),
        "--master is local[N], or a cluster's spark://, yarn or k8s:// address",
    ),
    (
        re.compile(
            r"All masters are unresponsive|stopped SparkContext|SparkContext was shut down"
            r"|removed by.* the master|Master removed our application",
            re.IGNORECASE,
        ),
        "is the cluster of --master up, and does it accept the application?",
    ),
    (
        re.compile(
            r"Python worker exited unexpectedly|OutOfMemoryError|ExecutorLostFailure", re.IGNORECASE
        ),
        "executors died: give them memory (--spark-config spark.executor.memory=), or fewer cores",
    ),
    (
        re.compile(r"ModuleNotFoundError|No module named|PYTHON_VERSION_MISMATCH", re.IGNORECASE),
        "executors need the same Python and Isotherm: docs/spark-cluster.md",
    ),
    (
        re.compile(r"No space left on device"),
        "name a larger folder: --spark-config spark.local.dir=",
    ),
)
_OTHERWISE = "isotherm pipeline --debug shows the whole trace"


def error_of_job(text: str) -> IsothermError:
    """The error in `text`, the message of an exception of PySpark or Py4J."""
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, IsothermError):
            return kind(message)
    reason = _reason(text)
    hint = next((hint for pattern, hint in _HINTS if pattern.search(text)), _OTHERWISE)
    return SparkJobError(f"a Spark job failed reason={reason!r} hint={hint!r}")


def _reason(text: str) -> str:
    for pattern in (_PYTHONS, _JAVAS):
        reasons = pattern.findall(text)
        if reasons:
            name, message = reasons[-1]
            return f"{name.rpartition('.')[2]}: {message}".strip()[:_REASON_SIZE_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_REASON_SIZE_MAX] if lines else "Spark gives no reason"
