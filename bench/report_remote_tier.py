"""The tables of docs/benchmarks.md about the remote tier under limits and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.report_rows import row

Section = Callable[[Mapping[str, Any]], Iterator[str]]


def _quota(document: Mapping[str, Any]) -> Iterator[str]:
    yield "KIP-956: bytes per second over the whole measurement; 10 percent is what is allowed."
    yield ""
    yield "| quota | limit MB/s | measured MB/s | of the limit | seconds |"
    yield "|---|---:|---:|---:|---:|"
    for quota in document["quotas"]:
        yield row(
            quota["quota"],
            f"{quota['limit_bytes_per_s'] / 1e6:.2f}",
            f"{quota['bytes_per_s'] / 1e6:.2f}",
            f"{quota['of_limit']:.3f}",
            f"{quota['seconds']:g}",
        )


def _index_cache(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "KIP-1264's case (stale) and a scan past a hot set (scan), on a simulated clock: requests"
        " are counted, so the machine does not matter. `bench/index_cache.py` describes the sides,"
        " [decision 33](decisions/0033-least-recently-used-indexes.md) the conclusion."
    )
    yield ""
    yield "| case | side | requests | hits | hits in the second half | calls to the store |"
    yield "|---|---|---:|---:|---:|---:|"
    for entry in document["caching"]:
        for name, side in entry["sides"].items():
            yield row(
                entry["case"],
                name,
                f"{side['requests']:,}",
                f"{side['hit_ratio']:.1%}",
                f"{side['hit_ratio_second_half']:.1%}",
                f"{side['remote_calls']:,}",
            )


def _cold_store(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"The S3 server delays its answers by {document['latency_ms']} ms. Consumers read"
        " the whole history from its first offset, all at once; their rate is the sum. The share is"
        " relative to the fastest form of GETs alone, measured in the same rounds: of its MB/s, and"
        " of the processor time per GB of all processes together, which is the limit once the"
        " processors are never idle. The first consumer of a new broker includes the cost of the"
        " memory that the kernel provides."
    )
    yield ""
    yield (
        "| side | MB/s | spread | share | GETs per GiB | CPU-s/GB | share | broker CPU-s/GB"
        " | broker memory MB |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, figures in document["store"].items():
        yield row(
            name,
            f"{figures['mb_per_s']:,.0f}",
            f"{figures['spread']:.0%}",
            f"{figures['share']:.2f}",
            f"{figures['gets_per_gib']:.1f}",
            f"{figures['cpu_s_per_gb']:.2f}" if "cpu_s_per_gb" in figures else "-",
            f"{figures['cpu_share']:.2f}" if "cpu_share" in figures else "-",
            f"{figures['server_cpu_s_per_gb']:.2f}" if "server_cpu_s_per_gb" in figures else "-",
            f"{figures['server_resident_mb']:,.0f}" if "server_resident_mb" in figures else "-",
        )


def _store_faults(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "Milliseconds until a record is acknowledged, by two brokers to which one producer writes"
        " in turn; one of them has a sick store. The ratio is that of the 99th percentiles, sick"
        " over sound. Next to it are its smallest and largest value over the rounds, and the"
        " processor time of the brokers, sick over sound. The row `sound` has two sound stores: its"
        " differences are noise."
    )
    yield ""
    yield (
        "| network to the store | sound p50 | p99 | sick p50 | p99 | ratio | over the rounds"
        " | CPU | memory MB | open files | threads |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in document["local_traffic"]:
        yield row(
            case["case"],
            *(
                f"{case[f'{side}_{p}_ms']:.2f}"
                for side in ("sound", "sick")
                for p in ("p50", "p99")
            ),
            f"{case['p99_of_sound']:.2f}",
            f"{case['smallest']:.2f} to {case['largest']:.2f}",
            f"{case['cpu_of_sound']:.2f}",
            f"{case['resident_mb']:.0f}",
            f"{case['open_files']:.0f}",
            f"{case['threads']:.0f}",
        )


def _fault_histories(document: Mapping[str, Any]) -> Iterator[str]:
    first, last = document["seeds"]
    yield (
        f"Simulations of three partitions with all tasks of the tier, seeds {first} to {last},"
        " once with faults above the store's client and once on the wire. Every read is compared"
        " with the appended records; at the end all records are read back and the bucket is"
        " scrubbed. A seed with a lost record, a leaked object or a wrong answer would be named."
        " `tests/fault/` tests S3's failures one by one."
    )
    yield ""
    yield "| faults | records | reads compared | pieces of work | faults injected | found wrong |"
    yield "|---|---:|---:|---:|---:|---|"
    for name, side in document["histories"].items():
        injected = sum(count for _, _, count in side["faults"])
        yield row(
            name,
            f"{side['records']:,}",
            f"{side['reads_compared']:,}",
            f"{side['pieces_of_work']:,}",
            f"{injected:,}",
            ", ".join(f"seed {seed}" for seed in side["differences"]) or "nothing",
        )
    yield ""
    yield "| faults | kind | met by | injected |"
    yield "|---|---|---|---:|"
    for name, side in document["histories"].items():
        for fault, met_by, count in side["faults"]:
            yield row(name, fault.replace("_", " "), met_by.replace("_", " "), f"{count:,}")


def _console(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "Milliseconds in a headless Chromium without the page's files, from the start of the"
        " navigation, or from a key, to the frame that shows the result. The cluster is made by"
        " hand, so no broker's answer is in it; `bench/console.py` says what each wait is. Targets:"
        " 1,000 to the first paint, 100 for an interaction."
    )
    yield ""
    yield "| wait | times | median ms | largest ms |"
    yield "|---|---:|---:|---:|"
    for name, figures in document["waits"].items():
        yield row(
            name,
            str(figures["count"]),
            f"{figures['median_ms']:,.0f}",
            f"{figures['largest_ms']:,.0f}",
        )


REMOTE_TIER: Mapping[str, Section] = {
    "remote_quota": _quota,
    "index_cache": _index_cache,
    "cold_store": _cold_store,
    "store_faults": _store_faults,
    "fault_histories": _fault_histories,
    "console": _console,
}
"""Question of a result -> the writer of its section."""
