"""Let Apache Kafka parse server.properties files, without starting a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from oracle.kafka import run_tool

CHECK_CONFIGS = Path(__file__).with_name("CheckConfigs.java")


def default_texts() -> dict[str, str]:
    """Kafka's default of every key of a broker that has one."""
    return {name: default for name, _, *default_or_none in _keys() for default in default_or_none}


def types_of_keys() -> dict[str, str]:
    """Kafka's type of every key of a broker."""
    return {name: type_name for name, type_name, *_ in _keys()}


def _keys() -> list[list[str]]:
    return [line.split("\t") for line in run_tool(str(CHECK_CONFIGS)).splitlines() if "\t" in line]


def check_configs(directory: Path, files: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """For each file, Kafka's listeners under `accepted`, or its message under `refused`.

    The files are written to `directory`.
    """
    paths = []
    for number, properties in enumerate(files):
        path = directory / f"{number}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        paths.append(path)
    answers = []
    for line in run_tool(str(CHECK_CONFIGS), *map(str, paths)).splitlines():
        verdict, *rest = line.split("\t")
        if verdict == "refused":
            answers.append({"refused": "\t".join(rest)})
        elif verdict == "accepted":
            names = ("brokers", "advertised", "controllers", "inter_broker")
            answers.append(dict(zip(names, rest, strict=True)))
    assert len(answers) == len(paths), "Kafka answered for each file"
    return answers
