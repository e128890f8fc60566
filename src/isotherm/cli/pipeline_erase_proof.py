"""The proof of an erasure: `--verify`, the end of a run, and the certificate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from isotherm.cli.output import console, error_console, print_json
from isotherm.cli.pipeline_erase_tail import Waiting
from isotherm.cli.pipeline_options import (
    EXIT_FOUND,
    progress,
)
from isotherm.clock import Clock
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.remote.erasure.certificate import ErasureCertificate
    from isotherm.spark.jobs.erase_selection import Selector
    from isotherm.spark.jobs.erase_settings import ErasureSettings
    from isotherm.spark.jobs.erase_tables import OpenedTable
    from isotherm.spark.options import SourceOptions
    from isotherm.spark.tables.open_table import TablePlace


@dataclass(frozen=True, slots=True)
class Verification:
    """A certificate's file or the name of its run, and the tables. With `erases` rows that are left
    in them are deleted."""

    certificate: str
    places: list[TablePlace]
    erases: bool


def verify_again(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    request: Verification,
    clock: Clock,
    *,
    as_json: bool,
) -> None:
    from isotherm.spark.jobs import erase_leftovers as leftovers
    from isotherm.spark.jobs.erase_certificates import put_certificate
    from isotherm.spark.jobs.erase_proof import prove, see_tables
    from isotherm.spark.jobs.erase_tables import open_tables

    certificate = _read_certificate(settings, request.certificate)
    owners = [partition.partition for partition in certificate.partitions]
    tables = open_tables(request.places, owners, writes=request.erases)
    with progress("reading everything again") as show_step:
        seen = prove(spark, options, settings, selector, certificate, clock.now_ms())
        seen = see_tables(spark, settings, seen, tables, erases=request.erases, progress=show_step)
    seen = leftovers.see_old_objects(settings, seen, clock.now_ms())
    seen = leftovers.see_local_copies(options, settings, seen)
    put_certificate(settings, seen)
    print_certificate(seen, as_json=as_json)
    exit_if_left(seen)


def prove_run(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    certificate: ErasureCertificate,
    tables: list[OpenedTable],
    waiting: Waiting,
) -> ErasureCertificate:
    """Prove the erasure, wait for the brokers, and store the certificate after each step."""
    from isotherm.spark.jobs import erase_leftovers as leftovers
    from isotherm.spark.jobs.erase_certificates import put_certificate
    from isotherm.spark.jobs.erase_proof import prove, see_tables

    with progress("reading everything again") as show_step:
        certificate = prove(spark, options, settings, selector, certificate, waiting.clock.now_ms())
        certificate = see_tables(
            spark, settings, certificate, tables, erases=True, progress=show_step
        )
    put_certificate(settings, certificate)
    with progress("waiting until the old segments are deleted"):
        while True:
            certificate = leftovers.see_old_objects(settings, certificate, waiting.clock.now_ms())
            certificate = leftovers.see_local_copies(options, settings, certificate)
            if not leftovers.old_objects_left(certificate) and not leftovers.local_copies_left(
                certificate
            ):
                break
            waiting.once("deleted the old segments and local copies")
    put_certificate(settings, certificate)
    return certificate


def _read_certificate(settings: ErasureSettings, text: str) -> ErasureCertificate:
    from isotherm.remote.erasure.certificate import decode_certificate
    from isotherm.spark.jobs.erase_certificates import open_certificates

    file = Path(text)
    try:
        return decode_certificate(file.read_bytes())
    except FileNotFoundError:
        if file.name != text:
            raise ConfigError(f"there is no certificate path={text}") from None
    except OSError as error:
        raise ConfigError(f"the certificate cannot be read path={text} reason='{error}'") from None
    return open_certificates(settings).get(text.removesuffix(".json"))


def print_certificate(certificate: ErasureCertificate, *, as_json: bool) -> None:
    from isotherm.remote.erasure.certificate import encode_certificate

    if as_json:
        print_json(json.loads(encode_certificate(certificate)))
        return
    console().print(f"\ncertificate of run {certificate.run}, in the bucket:")
    console().print(encode_certificate(certificate).decode(), markup=False, highlight=False)


def exit_if_left(certificate: ErasureCertificate) -> None:
    """Exit with 3 if a matching record is left, or may be."""
    from isotherm.spark.jobs.erase_leftovers import old_objects_left

    objects = old_objects_left(certificate)
    is_left = bool(certificate.left or objects or certificate.rows_left)
    if is_left:
        error_console().print(
            f"matching records are left records={certificate.left} old_segments={objects}"
            f" rows_of_tables={certificate.rows_left}"
        )
    if certificate.unread_segments:
        error_console().print(
            "the bucket has segments that no reader gets and that may hold matching records"
            f" segments={certificate.unread_segments} hint='isotherm pipeline sweep deletes"
            " uploads that no broker has finished; --verify looks again'"
        )
    if is_left or certificate.unread_segments:
        raise typer.Exit(EXIT_FOUND)
