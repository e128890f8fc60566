"""Upper bounds for rows of the table of targets, computed from the stored results for
docs/performance.md.

Each function gives the rows of one table: a case, and the most that Isotherm could reach if its own
part cost nothing. A result that is not stored gives "(not measured)".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROCESSORS = 2
FACTOR_OVER_KAFKA = 1.5
"""The rate in MB/s that a client is compared with, as a factor over Kafka's."""
COMPILED_CLIENTS = ("aiokafka", "java")

Documents = Mapping[str, Mapping[str, Any]]

_NOT_MEASURED = "(not measured)"
_EMPTY: Mapping[str, Any] = {"results": (), "decoding": ()}


def processor_split(documents: Documents) -> str:
    """The share of two processors that a librdkafka client takes, and its rate if a broker took
    none.
    """
    rows = []
    for question in ("produce", "tail_consume"):
        for result in documents.get(question, _EMPTY)["results"]:
            ours, theirs = (result["sides"].get(side) for side in ("isotherm", "kafka"))
            if not result["case"].startswith("librdkafka") or ours is None or theirs is None:
                continue
            mb_per_s = ours["mb_per_s"]["median"]
            client_s_per_gb = ours["client_cpu_s"]["median"] / (result["bytes"] / 1e9)
            broker_s_per_gb = ours["server_cpu_s_per_gb"]["median"]
            rows.append(
                f"| {question.partition('_')[0]}, {result['case']} | {mb_per_s:,.0f}"
                f" | {broker_s_per_gb * mb_per_s / 1e3:.2f} |"
                f" {client_s_per_gb * mb_per_s / 1e3:.2f} |"
                f" {PROCESSORS * 1e3 / client_s_per_gb:,.0f} |"
                f" {FACTOR_OVER_KAFKA * theirs['mb_per_s']['median']:,.0f} |"
            )
    return _table(rows)


def decoding_bounds(documents: Documents) -> str:
    """Two rates over each compiled client's: Isotherm's, and that of a reader that only checks,
    decompresses and copies once (the floor).
    """
    rows = []
    for result in documents.get("record_decode", _EMPTY)["decoding"]:
        rates = {side: measured["records_per_s"] for side, measured in result["sides"].items()}
        if not {"floor", "columns", *COMPILED_CLIENTS} <= rates.keys():
            continue
        ratios = [
            f" | {rates[ours] / rates[client]:.1f}"
            for client in COMPILED_CLIENTS
            for ours in ("columns", "floor")
        ]
        rows.append(f"| {result['case']}{''.join(ratios)} |")
    return _table(rows)


def spark_bounds(documents: Documents) -> str:
    """CPU-seconds per GB of a Spark read through Kafka and by Isotherm, the latter's by process;
    and the factor over Kafka, as measured and if the Python workers cost nothing.
    """
    rows = []
    for result in documents.get("spark_beside_kafka", _EMPTY)["results"]:
        for query, sides in result["queries"].items():
            if not {"kafka", "read"} <= sides.keys():
                continue
            kafka, ours = (_cpu_s_per_gb(sides[side]) for side in ("kafka", "read"))
            total, others = sum(kafka.values()), ours["jvm"] + ours["broker"]
            rows.append(
                f"| {result['case']}, {query} | {total:.1f} | {ours['jvm']:.1f}"
                f" | {ours['python']:.1f} | {total / sum(ours.values()):.1f} | {total / others:.1f}"
                " |"
            )
    return _table(rows)


def _cpu_s_per_gb(side: Mapping[str, Any]) -> dict[str, float]:
    processes = ("jvm", "python", "broker")
    # Older results can be negative: the CPU time of some workers was lost with their daemon.
    return {name: max(0.0, side[f"{name}_cpu_s_per_gb"]["median"]) for name in processes}


def _table(rows: list[str]) -> str:
    return "\n".join(rows) or _NOT_MEASURED
