"""`isotherm pipeline erase`: erases records from a tiered topic, in place or in a copy, and proves
it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions, parse_pairs
from isotherm.cli.output import console, error_console
from isotherm.cli.pipeline_bucket import MaxBytes
from isotherm.cli.pipeline_options import (
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    progress,
    source_texts,
    spark_session,
)
from isotherm.cli.pipeline_recovery import Recover, show_recovery
from isotherm.clock import Clock, SystemClock

if TYPE_CHECKING:
    from isotherm.spark.jobs.erase_selection import Selector
    from isotherm.spark.jobs.erase_settings import ErasureSettings
    from isotherm.spark.options import SourceOptions
    from isotherm.spark.tables.open_table import TablePlace

from isotherm.cli.pipeline_erase_proof import (
    Verification,
    exit_if_left,
    print_certificate,
    prove_run,
    verify_again,
)
from isotherm.cli.pipeline_erase_report import (
    print_plan,
    print_protection,
    print_reports,
    print_undecoded,
    print_unreachable,
)
from isotherm.cli.pipeline_erase_selection import SelectedRecords, selector_of
from isotherm.cli.pipeline_erase_tables import TablesOfTopics, check_tables, table_places
from isotherm.cli.pipeline_erase_tail import Waiting, check_tails, follow_tail

_HOUR_MS = 3_600_000


Action = Annotated[
    str,
    typer.Option(
        help="drop: the record goes. tombstone: its key stays, value and headers go. redact: the"
        " fields of --field in its JSON value become null.",
    ),
]


Field = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME",
        help="With --action redact: a field, such as user.name. May be given many times.",
    ),
]


To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Write a copy without the records to this place, and leave the source unchanged."
        " Without --to and --to-option the records are erased in place.",
    ),
]


ToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--to-option",
        metavar="KEY=VALUE",
        help="A storage setting of the copy, such as key.prefix=erased/. Other settings are those"
        " of the source. May be given many times.",
    ),
]


Run = Annotated[
    bool, typer.Option("--run", help="Erase. Without it the plan and its cost are shown.")
]


KeepOldMs = Annotated[
    int,
    typer.Option(
        min=0,
        help="In place: the time that old segments stay after they are superseded, for readers that"
        " have planned with them. It may be 0.",
    ),
]


Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="In place: wait until the broker has published the new segments and deleted the old"
        " ones, erase what is on brokers only now as it is tiered, and prove it.",
    ),
]


WaitS = Annotated[
    int, typer.Option(min=0, help="With --wait: the longest time, in seconds. 0 is no limit.")
]


Verify = Annotated[
    str | None,
    typer.Option(
        "--verify",
        metavar="CERTIFICATE",
        help="Check an earlier erasure again: a certificate's file, or the name of its run. Give"
        " the same records as then.",
    ),
]


@with_groups
def erase(
    *,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    selected: SelectedRecords,
    action: Action = "drop",
    field: Field = None,
    to: To = None,
    to_option: ToOption = None,
    run: Run = False,
    recover: Recover = False,
    verify: Verify = None,
    keep_old_ms: KeepOldMs = _HOUR_MS,
    wait: Wait = False,
    wait_s: WaitS = 0,
    tables: TablesOfTopics,
    max_bytes: MaxBytes = None,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Erase records from the history of a tiered topic, and prove it.

    Records of aborted transactions are erased too. Offsets, timestamps and headers of all other
    records stay. A topic of Isotherm is changed in place: the job stages segments, and the broker
    publishes them. With --to the job makes a copy, also of a Kafka cluster's bucket. Nothing is
    written without --run. A run ends with a certificate, which --verify checks again.

    isotherm pipeline erase -b broker:9092 --path s3://bucket/kafka -o subscribe=users --keys
    gone.txt

    Exit codes: 0 done · 1 failed, or refused by --max-bytes · 2 wrong options · 3 damage, or a
    matching record is left.
    """
    from isotherm.remote.storage.store_check import check_store
    from isotherm.spark.jobs import rewrite_run
    from isotherm.spark.jobs.erase_settings import settings_of
    from isotherm.spark.option_parsing import parse_options

    properties = client.properties
    options = parse_options(source_texts(path, option, bootstrap_server, properties))
    clock = SystemClock()
    erase_action, fields = _action(action, field)
    settings = settings_of(
        options,
        now_ms=clock.now_ms(),
        action=erase_action,
        fields=fields,
        keep_old_ms=keep_old_ms,
        to_url=to,
        to_storage=parse_pairs(to_option),
    )
    places = table_places(tables)
    check_tables(places, settings)
    if verify is None:
        rewrite_run.check_settings(settings, options)
    if settings.bucket is not None:
        check_store(settings.bucket, writes=run and settings.in_place)
    if settings.target is not None:
        check_store(settings.target, writes=run)
    if recover:
        _recover(options, settings, run=run, as_json=as_json)
        return
    selector = selector_of(selected)
    if verify is not None:
        with spark_session(spark_options) as spark:
            again = Verification(verify, places, erases=run)
            verify_again(spark, options, settings, selector, again, clock, as_json=as_json)
        return
    request = _Request(places, max_bytes, run, wait, wait_s, as_json)
    _plan_or_run(options, settings, selector, spark_options, request, clock)


@dataclass(frozen=True, slots=True)
class _Request:
    """What to do with the records that are selected."""

    places: list[TablePlace]
    max_bytes: int | None
    run: bool
    wait: bool
    wait_s: int
    as_json: bool


def _plan_or_run(
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    spark_options: SparkOptions,
    request: _Request,
    clock: Clock,
) -> None:
    from isotherm.remote.storage.bucket_protection import read_protection
    from isotherm.spark.jobs import erase as job
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.jobs.erase_matches import find_matches
    from isotherm.spark.jobs.erase_plan import read_erasure_plan
    from isotherm.spark.jobs.erase_tables import count_rows, erased_offsets, open_tables

    with progress("reading metadata"):
        plan = read_erasure_plan(options, settings, selector)
        opened = open_tables(request.places, plan.unreachable, writes=request.run)
    with spark_session(spark_options) as spark:
        check_cost(job.cost_of_scan(spark, plan, selector, settings.fetch_bytes), request.max_bytes)
        with progress("finding the records") as show_step:
            matches = find_matches(spark, plan, selector, settings)
            cost = job.cost_of_run(spark, plan, matches, selector, settings)
            if request.run:
                check_cost(cost, request.max_bytes)
                certificate, reports = job.erase(
                    spark, plan, matches, selector, settings, show_step, opened
                )
            else:
                offsets = (
                    erased_offsets(matches.selection, matches.counts, plan.pieces) if opened else {}
                )
                rows = count_rows(spark, opened, offsets)
        matches.unpersist()
        if not request.run:
            protection = read_protection(settings.written, clock.now_ms())
            reports = job.report(plan, matches)
            print_plan(plan, reports, cost, rows, protection, as_json=request.as_json)
            return
        if not request.as_json:
            print_reports(reports)
            print_undecoded(reports)
            print_unreachable(plan)
            print_protection(certificate.protection)
            for table in certificate.tables:
                console().print(f"table {table.name}: {table.deleted} rows deleted")
        if settings.in_place and not request.wait:
            error_console().print(
                "the broker publishes the staged segments at its next check; then --verify"
                f" {certificate.run} proves it"
            )
            print_certificate(certificate, as_json=request.as_json)
            return
        waiting = Waiting(clock, request.wait_s)
        certificate, left = follow_tail(
            spark, options, settings, selector, certificate, plan, opened, waiting
        )
        certificate = prove_run(spark, options, settings, selector, certificate, opened, waiting)
    print_certificate(certificate, as_json=request.as_json)
    exit_if_left(certificate)
    check_tails(left, request.wait_s)


def _recover(
    options: SourceOptions, settings: ErasureSettings, *, run: bool, as_json: bool
) -> None:
    from isotherm.spark.jobs.erase_proof import unproved_runs

    show_recovery(
        settings,
        options,
        run=run,
        as_json=as_json,
        hint="\n--recover --run does it; no run may still be in progress",
    )
    with progress("checking for runs without a proof"):
        unproved = unproved_runs(settings, options.selects_topic)
    for certificate in unproved:
        error_console().print(
            f"run {certificate.run} has no proof yet: --verify {certificate.run} with the same"
            " selection finishes it, or says what the run did not erase"
        )


def _action(text: str, fields: list[str] | None) -> Any:
    from isotherm.remote.erasure.erased_piece import EraseAction
    from isotherm.remote.erasure.redaction import parse_field

    try:
        action = EraseAction(text)
    except ValueError:
        actions = ", ".join(erase_action.value for erase_action in EraseAction)
        raise typer.BadParameter(f"one of {actions}: {text}", param_hint="--action") from None
    if (action is EraseAction.REDACT) != bool(fields):
        raise typer.BadParameter(
            "--action redact takes one --field or more, and no other action does",
            param_hint="--field",
        )
    try:
        return action, tuple(parse_field(field) for field in fields or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--field") from None
