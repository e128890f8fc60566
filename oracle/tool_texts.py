"""Output of Kafka's tools, in a form that is the same for brokers that were set up alike."""

from __future__ import annotations

import re
from typing import NamedTuple


class Run(NamedTuple):
    """A tool's exit status, and the lines of its text in normal form."""

    status: int
    text: frozenset[str]


_NORMAL_FORMS = [
    (re.compile(r"(127\.0\.0\.1|localhost)(:| +)\d+"), "<address>"),
    (re.compile(r"(?<![\w-])(?=\S*[0-9A-Z])[\w-]{22}(?![\w-])"), "<id>"),
    (re.compile(r"/\S*?/(log|data)(?=[\"\]])"), "<log dir>"),
    (re.compile(r"/\S+\.json"), "<file>"),
    (re.compile(r"^\d+ \[", re.MULTILINE), "["),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[:,.]\d+"), "<time>"),
    (re.compile(r"(?<!\d)1\d{12}(?!\d)"), "<ms>"),
    (re.compile(r"\n\tat .*"), ""),
    (re.compile(r"(org\.apache\.kafka\.common\.(?:errors|config)\.\w+): .*"), r"\1"),
    (re.compile(r"(Error while executing topic command :) .*"), r"\1"),
    (re.compile(r"(?<=Valid states are: ).*"), "<states>"),
    (re.compile(r"adminclient-\d+"), "adminclient"),
    # With eligible leader replicas (KIP-966) a Kafka cluster sets it for all brokers.
    (re.compile(r"  min\.insync\.replicas=1 .*\n?|min\.insync\.replicas=1,?"), ""),
    # A controller places the replicas of these topics at random.
    (re.compile(r".*Topic: (__consumer_offsets|__remote_log_metadata)\tPartition: .*\n?"), ""),
    (re.compile(r"__consumer_offsets-\d"), "__consumer_offsets"),
    (re.compile(r"(<address> +)\(\d\)"), r"\1(<coordinator>)"),
    # The leader epoch of the metadata log, its end offset, and the age of a replica's last fetch.
    (re.compile(r"(LeaderEpoch|HighWatermark|MaxFollowerLag(?:TimeMs)?): +\d+"), r"\1"),
]


def normalised(text: str) -> str:
    for pattern, form in _NORMAL_FORMS:
        text = pattern.sub(form, text)
    return text


def difference(line: str, ours: Run, theirs: Run) -> str:
    return (
        f"{line}\n"
        f"  isotherm {ours.status} {sorted(ours.text - theirs.text)}\n"
        f"  kafka    {theirs.status} {sorted(theirs.text - ours.text)}"
    )
