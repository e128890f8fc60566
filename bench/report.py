"""Write docs/benchmarks.md, its plots, and the figures of README.md from bench/results/.

python -m bench.report            write them
python -m bench.report --check    fail if one of them differs from the results
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report_growth, report_pages, report_soak, report_table, targets
from bench.harness import REPOSITORY, RESULTS_DIRECTORY
from bench.report_remote_tier import REMOTE_TIER
from bench.report_rows import provenance
from bench.report_rows import row as _row

PAGE = REPOSITORY / "docs" / "benchmarks.md"
README = REPOSITORY / "README.md"
FIGURES_BEGIN, FIGURES_END = "<!-- figures -->\n", "<!-- end of figures -->\n"

INTRODUCTION = """\
# Benchmarks

This page has the measured speed and cost of Isotherm, beside Apache Kafka. `python -m
bench.report` makes it from `bench/results/*.json`; do not edit it. `make bench` measures everything
and writes both; `python -m bench produce latency` measures some questions; `python -m bench --list`
lists all questions and their duration. `make bench-quick` takes minutes, stores nothing, and
fails when a ratio falls below its floor (`bench/floors.toml`).

Isotherm and Apache Kafka run in turn (A B A B ...) on the same machine, with the same client, data
and topic settings, each in a process of its own; client and both servers share the machine's
processors. Kafka has the 1 GiB heap and the collector of its own start script. A figure is the
median over the rounds after a warm-up round; the spread is (largest - smallest) / median; a
ratio is Isotherm's median over Kafka's. MB are 10^6 bytes of record values. CPU-seconds are the
server process's own, user and system. As much memory as a round writes to files is touched and
freed before it ([why](performance.md)). Differences smaller than the spreads mean nothing.

[How cost grows](growth.md) has the plots, [where the time goes](performance.md) the reasons,
[capacity](capacity.md) the consequences for a machine.

## Targets and results

Ratios of Isotherm to Apache Kafka in the same run, from the smallest to the largest of the cases of
the section below; `bench/targets.toml` has the targets.

"""

# The texts of questions that are not in their results.
TEXTS = {"record_decode": "How fast do record batches become Arrow columns, on one thread?"}


# Questions with figures of their own: metric -> its name on the page.
FIGURES = {
    "partitions": {
        "start_s": "s to start after a clean stop",
        "start_cpu_s": "CPU-s of it",
        "unclean_start_s": "s to start after a kill",
        "stop_s": "s to stop",
        "resident_mb": "memory MB while idle",
        "open_files": "open files",
        "threads": "threads",
        "idle_cpu_percent": "percent of a CPU while idle",
    },
    "first_record": {
        "first_record_ms": "ms to the first acknowledgement",
        "slowest_after_ms": "the slowest of the 99 after it",
        "hundred_records_ms": "all 100, one after the other",
    },
    "connections": {
        "publish_p50_ms": "ms to publish, p50",
        "publish_p99_ms": "ms to publish, p99",
        "publish_p999_ms": "ms to publish, p99.9",
        "server_cpu_s": "CPU-s of a round",
        "server_resident_mb": "memory MB",
    },
    "failed_logins": {
        "failed_logins_per_s": "failed logins a second",
        "latency_p50_ms": "ms to write and read a record, p50",
        "latency_p99_ms": "ms to write and read a record, p99",
        "login_p50_ms": "ms to connect and log in, p50",
        "login_p99_ms": "ms to connect and log in, p99",
        "server_cpu_s": "CPU-s of a round",
        "server_resident_mb": "memory MB",
    },
    "history_readers": {
        "read_mb_per_s": "MB/s of history read",
        "quiet_publish_p50_ms": "ms to publish, p50, alone",
        "publish_p50_ms": "ms to publish, p50, with readers",
        "quiet_publish_p99_ms": "ms to publish, p99, alone",
        "publish_p99_ms": "ms to publish, p99, with readers",
        "publish_p99_times_quiet": "p99 with readers / alone",
    },
    "tiering": {
        "copied_mb_per_s": "MB/s of one copy",
        "roll_to_finished_p50_s": "s from roll to COPY_SEGMENT_FINISHED, median",
        "roll_to_finished_max_s": "the longest",
        "quiet_publish_p99_ms": "ms to publish, p99, not tiered",
        "publish_p99_ms": "ms to publish, p99, tiered",
        "publish_p99_times_quiet": "tiered / not tiered",
        "server_cpu_s_per_gb": "CPU-s/GB",
    },
    "replication": {
        "mb_per_s": "MB/s, acks=all",
        "server_cpu_s_per_gb": "CPU-s/GB of all brokers",
        "latency_p99_ms": "ms until it is answered, p99, as fast as it goes",
        "publish_p50_ms": "ms until it is answered, p50",
        "publish_p99_ms": "ms until it is answered, p99",
        "server_cpu_s": "CPU-s of all brokers",
        "resident_mb": "memory MB of a broker",
        "proportional_mb": "the same, shared pages divided",
        "joined_s": "s until it is in the ISR",
        "copied_mb": "MB that it has then",
        "unavailable_s": "s without an acknowledgement",
        "stop_s": "s to stop",
        "back_in_sync_s": "s from its start until it is in the ISR",
    },
}


def render(documents: Sequence[Mapping[str, Any]]) -> str:
    """The whole page, one section for each result, in the order of their names."""
    # Growth has a page of its own.
    shown = [document for document in documents if document["question"] != "growth"]
    ordered = sorted(shown, key=lambda document: document["question"])
    table = INTRODUCTION + "\n".join(targets.table(documents)) + "\n"
    return "\n".join([table, *("\n".join(_section(document)) for document in ordered)])


def render_readme(readme: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """The README, with the headline figures and the missed targets between its two marks."""
    before, _, rest = readme.partition(FIGURES_BEGIN)
    _, _, after = rest.partition(FIGURES_END)
    rows = "\n".join(targets.headline(documents))
    return f"{before}{FIGURES_BEGIN}{rows}\n{FIGURES_END}{after}"


def _section(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {document.get('text', TEXTS.get(document['question']))}"
    yield ""
    if "note" in document:
        yield document["note"]
        yield ""
    yield from _body(document)
    yield ""
    yield provenance(document)
    yield ""


def _body(document: Mapping[str, Any]) -> Iterator[str]:
    question = document["question"]
    if question in FIGURES:
        return _figures(document, FIGURES[question])
    if question == "table":
        return report_table.section(document, _queries)
    if "results" in document:
        return _of_results(document)
    if question in REMOTE_TIER:
        return REMOTE_TIER[question](document)
    (form,) = OWN_FORMS.keys() & document.keys()
    return OWN_FORMS[form](document)


def _of_results(document: Mapping[str, Any]) -> Iterator[str]:
    if "queries" in document["results"][0]:
        return _queries(document)
    return _open_loop(document) if _is_open_loop(document) else _comparison(document)


def _comparison(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| case | isotherm MB/s | spread | kafka MB/s | spread | ratio |"
    yield "|---|---:|---:|---:|---:|---:|"
    for result in document["results"]:
        ours, theirs = (_side(result, name, "mb_per_s") for name in ("isotherm", "kafka"))
        yield _row(result["case"], *ours, *theirs, _ratio(result, "mb_per_s"))
    yield ""
    yield (
        "| case | isotherm CPU-s/GB | kafka CPU-s/GB | ratio"
        " | isotherm memory MB | kafka memory MB |"
    )
    yield "|---|---:|---:|---:|---:|---:|"
    for result in document["results"]:
        cpu = [_side(result, name, "server_cpu_s_per_gb", 2)[0] for name in ("isotherm", "kafka")]
        memory = [_side(result, name, "server_resident_mb", 0)[0] for name in ("isotherm", "kafka")]
        yield _row(result["case"], *cpu, _ratio(result, "server_cpu_s_per_gb"), *memory)
    yield from _latencies(document)


def _figures(document: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    yield f"`bench/{document['question']}.py` describes the measurement."
    yield ""
    yield "| case | figure | isotherm | spread | kafka | spread | ratio |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for result in document["results"]:
        for metric, name in names.items():
            if not any(metric in side for side in result["sides"].values()):
                continue
            ours, theirs = (_side(result, side, metric, 2) for side in ("isotherm", "kafka"))
            yield _row(result["case"], name, *ours, *theirs, _ratio(result, metric))


def _is_open_loop(document: Mapping[str, Any]) -> bool:
    return all(
        "publish_p99_ms" in metrics
        for result in document["results"]
        for metrics in result["sides"].values()
    )


def _open_loop(document: Mapping[str, Any]) -> Iterator[str]:
    """Latencies at scheduled rates; the ratio is that of the 99th percentiles."""
    yield (
        "Milliseconds: 50th / 99th / 99.9th percentile, and the spread of the 99th over the rounds."
    )
    yield ""
    yield "| case | latency | isotherm | spread | kafka | spread | ratio |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for result in document["results"]:
        for latency in ("publish", "end_to_end", "delay"):
            cells = []
            for name in ("isotherm", "kafka"):
                steps = [_side(result, name, f"{latency}_{p}_ms") for p in ("p50", "p99", "p999")]
                cells += [" / ".join(step[0] for step in steps), steps[1][1]]
            if cells[0][0] != "-":
                ratio = _ratio(result, f"{latency}_p99_ms")
                yield _row(result["case"], latency.replace("_", " "), *cells, ratio)
    yield ""
    yield (
        "publish: until the broker has acknowledged it; end to end: until a consumer has it;"
        " delay: how late the client sent it. All count from its scheduled time."
    )


def _starts(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| case | isotherm s | spread | kafka s | spread | ratio | isotherm stop s | kafka stop s"
        " | isotherm p99 / max ms | kafka p99 / max ms |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for result in document["starting"]:
        ours, theirs = (_side(result, name, "start_s", 2) for name in ("isotherm", "kafka"))
        stops = [_side(result, name, "stop_s", 2)[0] for name in ("isotherm", "kafka")]
        waits = [
            " / ".join(_side(result, name, f"wait_{of}_ms")[0] for of in ("p99", "max"))
            for name in ("isotherm", "kafka")
        ]
        yield _row(result["case"], *ours, *theirs, _ratio(result, "start_s"), *stops, *waits)
    yield ""
    yield "p99 and max: a client's wait for an answer in the first two seconds after the start."


def _coordinators(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| figure | isotherm | spread | kafka | spread | ratio |"
    yield "|---|---:|---:|---:|---:|---:|"
    figures = {
        "killed_s": "s from the kill until the group has read and committed",
        "after_election_s": "of these after the election",
        "loaded_s": "s until the elected coordinator answers",
        "loaded_cpu_s": "its CPU-s",
        "loaded_mb": "MB that it grew",
        "resident_mb": "MB resident then",
    }
    for result in document["coordinators"]:
        yield _row(result["case"], *[""] * 5)
        for metric, text in figures.items():
            sides = [_side(result, name, metric, 2) for name in ("isotherm", "kafka")]
            yield _row(text, *sides[0], *sides[1], _ratio(result, metric))


def _latencies(document: Mapping[str, Any]) -> Iterator[str]:
    with_latencies = [
        result
        for result in document["results"]
        if all("latency_p99_ms" in metrics for metrics in result["sides"].values())
    ]
    if not with_latencies:
        return
    yield ""
    yield "| case, as fast as it goes | isotherm p50 / p99 ms | kafka p50 / p99 ms |"
    yield "|---|---:|---:|"
    for result in with_latencies:
        cells = [
            " / ".join(
                _side(result, name, f"latency_{percentile}_ms", 0)[0]
                for percentile in ("p50", "p99")
            )
            for name in ("isotherm", "kafka")
        ]
        yield _row(result["case"], *cells)


def _sides(document: Mapping[str, Any], entries: str, unit: str) -> Iterator[str]:
    """The section of a result that names its own sides; no broker takes part."""
    yield f"`bench/{document['question']}.py` describes the sides."
    yield ""
    yield f"| case | side | M {unit}/s | MB/s | spread |"
    yield "|---|---|---:|---:|---:|"
    for entry in document[entries]:
        for name, figures in entry["sides"].items():
            yield _row(
                entry["case"],
                name,
                f"{figures[f'{unit}_per_s'] / 1e6:.2f}",
                f"{figures['mb_per_s']:,.0f}",
                f"{figures['spread']:.0%}",
            )
    if "loading" in document:
        yield ""
        yield "| to load in a new process | seconds | spread |"
        yield "|---|---:|---:|"
        for name, figures in document["loading"].items():
            yield _row(name, f"{figures['seconds']:.3f}", f"{figures['spread']:.0%}")


def _decoding(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "Every side checks the CRC of every batch, decompresses it, and copies offset, timestamp,"
        " key and value of every record into memory of its own: columns, objects with two `bytes`"
        " each (kafka-python; aiokafka, whose reader is compiled), or arrays (Java). Rates are per"
        " CPU-second of the whole process. `floor` is the work that every side has to do: a CRC"
        " over all of the bytes, and one copy of them or the codec's library alone. If the floor"
        " is below ten times the rate of a client, no reader can reach ten times that rate."
    )
    yield ""
    yield from _sides(document, "decoding", "records")


def _bootstrap(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"`bench/{document['question']}.py` describes the sides."
    yield ""
    yield "| history | side | records | seconds | CPU-s | spread | times level 1 |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for point in document["bootstrap"]:
        shortest = point["sides"]["isotherm, level 1"]["cpu_seconds"]
        for name, side in point["sides"].items():
            yield _row(
                f"{point['years']:g} years",
                name,
                f"{side['records']:,}",
                f"{side['seconds']:.3f}",
                f"{side['cpu_seconds']:.3f}",
                f"{side['spread']:.0%}",
                f"{side['cpu_seconds'] / shortest:,.0f}",
            )
    yield ""
    yield "| history | topic at level 0, MB | at level 1, compacted, MB | less |"
    yield "|---|---:|---:|---:|"
    for point in document["bootstrap"]:
        sizes = [point[name] / 1e6 for name in ("size_level_0", "size_level_1")]
        less = f"{1 - sizes[1] / sizes[0]:.1%}"
        yield _row(f"{point['years']:g} years", *(f"{size:,.1f}" for size in sizes), less)


def _pipeline(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"`bench/{document['question']}.py` describes the sides. {document['metadata_partitions']}"
        " metadata partitions; Spark is local[2], and had been started before, in"
        f" {document['spark_start_s']:.0f} s."
    )
    yield ""
    yield "| events, million | side | seconds | µs an event | CPU-s | memory MB |"
    yield "|---:|---|---:|---:|---:|---:|"
    for point in document["pipeline"]:
        for name, side in point["sides"].items():
            yield _row(
                f"{point['events'] / 1e6:g}",
                name,
                f"{side['seconds']:.1f}",
                f"{side['seconds'] / point['events'] * 1e6:.2f}",
                f"{side['cpu_seconds']:.1f}" if "cpu_seconds" in side else "",
                f"{side['memory_mb']:.0f}",
            )
    wins_from = document.get("spark_wins_from")
    if wins_from is not None:
        yield ""
        yield f"By the clock a replay on Spark is faster from {wins_from:,} events on."


def _queries(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"`bench/{document['question']}.py` describes the sides, `bench/spark_queries.py` the"
    yield "queries. Rows per CPU-second count every process: Spark's JVM, its Python workers, and"
    yield "the broker. The ratios are the side's rows per CPU-second over those of the named side."
    yield ""
    yield (
        "| case | query | side | M rows/s | MB/s | spread | JVM CPU-s/GB | Python | broker"
        " | M rows/CPU-s | times kafka | of parquet |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for result in document["results"]:
        for query, sides in result["queries"].items():
            for name, side in sides.items():
                yield _row(result["case"], query, name, *_query_cells(side, sides))


def _query_cells(side: Mapping[str, Any], sides: Mapping[str, Any]) -> Iterator[str]:
    def median(metric: str) -> float:
        return float(side[metric]["median"])

    def over(name: str) -> str:
        if name not in sides or sides[name] is side:
            return "-"
        theirs = float(sides[name]["rows_per_cpu_s"]["median"])
        return f"{median('rows_per_cpu_s') / theirs:.2f}"

    yield f"{median('rows_per_s') / 1e6:.2f}"
    yield f"{median('mb_per_s'):,.0f}"
    yield f"{side['rows_per_cpu_s']['spread']:.0%}"
    for process in ("jvm", "python", "broker"):
        cpu_s = median(f"{process}_cpu_s_per_gb")
        yield f"{cpu_s:.2f}" if cpu_s else "-"
    yield f"{median('rows_per_cpu_s') / 1e6:.2f}"
    yield over("kafka")
    yield over("parquet")


def _tables(document: Mapping[str, Any]) -> Iterator[str]:
    """The section of a result that is stored as tables."""
    yield f"`bench/{document['question']}.py` describes the counts."
    for table in document["tables"]:
        yield ""
        yield f"### {table['title']}"
        yield ""
        yield _row(*table["columns"])
        yield "|---" * len(table["columns"]) + "|"
        yield from (_row(*map(str, row)) for row in table["rows"])


def _compaction(document: Mapping[str, Any]) -> Iterator[str]:
    yield "`bench/compact.py` describes the measurement."
    yield ""
    yield (
        "| MB of segments | records | kept | seconds | spread | MB/s | CPU-s | worker MB"
        " | driver MB |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for point in document["compaction"]:
        yield _row(
            f"{point['bytes'] / 1e6:,.0f}",
            f"{point['records']:,}",
            f"{point['records_kept']:,.0f}",
            f"{point['seconds']:.1f}",
            f"{point['spread']:.0%}",
            f"{point['mb_per_s']:.1f}",
            f"{point['cpu_s']:.1f}",
            f"{point['worker_mb']:,.0f}",
            f"{point['driver_mb']:,.0f}",
        )


def _limits(document: Mapping[str, Any]) -> Iterator[str]:
    yield "One thread; `bench/limits.py` describes the work. The figure is the best of the rounds."
    yield ""
    yield "| what | MB/s | CPU-s/GB |"
    yield "|---|---:|---:|"
    for name, figures in document["limits"].items():
        cpu_s = figures.get("cpu_s_per_gb")
        yield _row(name, f"{figures['mb_per_s']:,.0f}", "-" if cpu_s is None else f"{cpu_s:.2f}")


def _memory(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| live segments | level | memory MB | bytes each | us a look-up |"
    yield "|---:|---:|---:|---:|---:|"
    for point in document["memory"]:
        yield _row(
            f"{point['segments']:,}",
            str(point["level"]),
            f"{point['memory_mb']:,.0f}",
            f"{point['bytes_per_segment']:,.0f}",
            f"{point['lookup_us']:.1f}",
        )


def _listing(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| events | topic MB | what is printed | s | events/s | MiB of memory in its first tenth"
        " | at its peak |"
    )
    yield "|---:|---:|---|---:|---:|---:|---:|"
    for point in document["listing"]:
        yield _row(
            f"{point['events']:,}",
            f"{point['topic_mb']:,}",
            point["case"],
            f"{point['wall_s']:.1f}",
            f"{point['events_per_s']:,}",
            f"{point['early_mib']:.0f}",
            f"{point['peak_mib']:.0f}",
        )


def _small_jobs(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| job | s, Spark's start included | CPU-s, with Spark's JVM and workers |"
    yield "|---|---:|---:|"
    for point in document["small_jobs"]:
        yield _row(
            point["job"],
            f"{point['s']:.1f} ({point['s_min']:.1f} to {point['s_max']:.1f})",
            f"{point['cpu_s']:.1f}",
        )


_REPLICA_FIGURES = {
    "publish_p50_ms": "ms to publish, p50",
    "publish_p99_ms": "ms to publish, p99",
    "p99_times_alone": "p99, times alone",
    "broker_cpu_s": "CPU-s of the broker",
    "broker_cpu_times_alone": "CPU, times alone",
    "broker_cpu_s_per_gb_read": "CPU-s of the broker beyond alone, for a GB read",
    "read_mb_per_s": "MB/s of history read",
    "mb_per_s": "MB/s",
    "cpu_s_per_gb": "CPU-s/GB",
    "first_record_s": "s from the start to the first record",
    "cpu_s": "CPU-s",
    "resident_mb": "memory MB",
    "idle_mb": "memory MB before",
    "peak_mb": "memory MB, peak",
}


def _replica(document: Mapping[str, Any]) -> Iterator[str]:
    """A table for each part: medians, and the smallest and the largest of the rounds."""
    for part, points in itertools.groupby(document["replica"], lambda point: point["part"]):
        rows = list(points)
        names = list(rows[0]["figures"])
        yield _row(part, *(_REPLICA_FIGURES[name] for name in names))
        yield "|---|" + "---:|" * len(names)
        for point in rows:
            figures = [sorted(point["figures"][name]) for name in names]
            cells = (f"{statistics.median(f):,.2f} ({f[0]:,.2f} to {f[-1]:,.2f})" for f in figures)
            yield _row(point["case"], *cells)
        yield ""


def _side(result: Mapping[str, Any], name: str, metric: str, digits: int = 1) -> tuple[str, str]:
    """Median and spread of a metric on one side; dashes where it was not measured."""
    figures = result["sides"].get(name, {}).get(metric)
    if figures is None:
        return "-", "-"
    return f"{figures['median']:,.{digits}f}", f"{figures['spread']:.0%}"


def _ratio(result: Mapping[str, Any], metric: str) -> str:
    ratio = result["ratios"].get(metric)
    return "-" if ratio is None else f"{ratio:.2f}"


# Results with a form of their own: the member of the document that holds them -> the section's
# writer.
OWN_FORMS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "tables": _tables,
    "limits": _limits,
    "starting": _starts,
    "coordinators": _coordinators,
    "bootstrap": _bootstrap,
    "memory": _memory,
    "listing": _listing,
    "small_jobs": _small_jobs,
    "replica": _replica,
    "pipeline": _pipeline,
    "decoding": _decoding,
    "reading": lambda document: _sides(document, "reading", "rows"),
    "compaction": _compaction,
    "soak": report_soak.section,
}


def read_results() -> list[dict[str, Any]]:
    """All stored results."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS_DIRECTORY.glob("*.json"))]


def pages() -> dict[Path, str]:
    """Every file that is made from the results, with its path and text."""
    documents = read_results()
    made = {PAGE: render(documents), README: render_readme(README.read_text(), documents)}
    others = report_pages.pages(documents)
    for document in documents:
        if document["question"] == "growth":
            others |= report_growth.pages(document)
        if document["question"] == "soak":
            others[report_soak.PLOT] = report_soak.plot(document["soak"])
    return made | {REPOSITORY / path: text for path, text in others.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    differing = []
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            differing.append(str(path.relative_to(REPOSITORY)))
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    print("\n".join(f"{'differs' if check else 'written'}: {name}" for name in differing))
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
