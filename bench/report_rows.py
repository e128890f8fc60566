"""What every section of docs/benchmarks.md is put together from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def provenance(document: Mapping[str, Any], machine: Mapping[str, Any], rounds: int) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    load = document.get("load_average")
    return (
        f"{rounds} rounds, {document['date']}, commit `{document['commit']}`,"
        f" {machine['cpus']} CPUs ({machine['cpu']})"
        + (f", load average {load:.1f} at the start" if load is not None else "")
        + f"; {versions}."
    )
