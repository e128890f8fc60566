"""What `isotherm pipeline erase` prints of its plan and of what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isotherm.cli.output import console, human_size, print_json, print_rows

if TYPE_CHECKING:
    from isotherm.remote.erasure.certificate import ErasedTable
    from isotherm.remote.storage.bucket_protection import BucketProtection
    from isotherm.spark.jobs.cost import Cost
    from isotherm.spark.jobs.erase import PartitionReport
    from isotherm.spark.jobs.erase_plan import ErasurePlan


LINES_SHOWN_MAX = 20


def print_plan(
    plan: ErasurePlan,
    reports: list[PartitionReport],
    cost: Cost,
    tables: list[ErasedTable],
    protection: BucketProtection,
    *,
    as_json: bool,
) -> None:
    rows = [partition.as_row() for partition in reports]
    shown = ("topic", "partition", "segments", "matching", "records", "bytes", "undecoded")
    if as_json:
        print_json(
            {
                "cost": cost.as_row(),
                "bucket": {
                    "versioning": protection.versioning,
                    "replication": protection.replication,
                    "objectLock": protection.object_lock,
                },
                "tables": [{"name": table.name, "rows": table.left} for table in tables],
                "partitions": [
                    {
                        **{name: row[name] for name in shown},
                        "unreachable": [
                            {
                                "start_offset": missed.start_offset,
                                "end_offset": missed.end_offset,
                                "reason": missed.reason,
                            }
                            for missed in plan.unreachable[report.partition]
                        ],
                    }
                    for row, report in zip(rows, reports, strict=True)
                ],
            }
        )
        return
    print_rows(shown[:-1], rows, as_json=False)
    print_undecoded(reports)
    print_unreachable(plan)
    print_protection(protection)
    for table in tables:
        console().print(f"table {table.name}: {table.left} rows in its newest and older states")
    console().print(
        f"\nwould read {human_size(cost.bytes_read)} in {cost.gets} GETs and store {cost.puts}"
        f" objects at most, in about {cost.seconds():.0f} s; --run does it"
    )


def print_reports(reports: list[PartitionReport]) -> None:
    columns = (
        "topic", "partition", "segments", "matching", "records", "changed", "bytes", "bytes_after",
    )  # fmt: skip
    print_rows(columns, [report.as_row() for report in reports], as_json=False)


def print_undecoded(reports: list[PartitionReport]) -> None:
    for report in reports:
        if report.undecoded is not None:
            console().print(
                f"not decoded, and so not selected: {report.undecoded.count} values of"
                f" {report.partition}, the first one at offset {report.undecoded.first}"
            )


def print_unreachable(plan: ErasurePlan) -> None:
    lines = [
        f"not reached: {partition} offsets {missed.start_offset} to {missed.end_offset - 1}:"
        f" {missed.reason}"
        for partition, unreachable in plan.unreachable.items()
        for missed in unreachable
    ]
    for line in lines[:LINES_SHOWN_MAX]:
        console().print(line)
    if len(lines) > LINES_SHOWN_MAX:
        console().print(f"not reached: {len(lines) - LINES_SHOWN_MAX} more; --json has all")


def print_protection(protection: BucketProtection) -> None:
    for line in protection.lines():
        console().print(f"the bucket: {line}", soft_wrap=True)
