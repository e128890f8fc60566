"""Parts that every section of docs/benchmarks.md uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def provenance(document: Mapping[str, Any]) -> str:
    """The sentence that names a result's date and commit; for timings also rounds, machine and
    versions.
    """
    origin = f"{document['date']}, commit `{document['commit']}`"
    if "rounds" not in document:
        return f"Seed {document['seed']}, {origin}." if "seed" in document else f"{origin}."
    machine = document.get("machine", document)
    versions = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    load = document.get("load_average")
    return (
        f"{document['rounds']} rounds, {origin}, {machine['cpus']} CPUs ({machine['cpu']})"
        + (f", load average {load:.1f} at the start" if load is not None else "")
        + f"; {versions}."
    )
