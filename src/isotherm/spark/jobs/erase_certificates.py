"""What a run of an erasure keeps in the bucket that it wrote to: its certificate, and the offsets
of the erased records, by which rows of tables are found."""

from __future__ import annotations

import io

from pyarrow import parquet

from isotherm.remote.erasure.certificate import (
    ErasureCertificate,
    ErasureCertificates,
)
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.spark.jobs.erase_settings import ErasureSettings
from isotherm.spark.jobs.erase_tables import (
    ErasedOffsets,
    offsets_table,
    read_offsets,
)


def open_certificates(settings: ErasureSettings) -> ErasureCertificates:
    client = ObjectClient(settings.written, open_object_store(settings.written, create_folder=True))
    return ErasureCertificates(client, settings.written.create_layout().root_directory)


def put_certificate(settings: ErasureSettings, certificate: ErasureCertificate) -> str:
    """Store the certificate in the bucket that the run wrote to. Returns its key."""
    return open_certificates(settings).put(certificate)


def put_offsets(settings: ErasureSettings, run: str, offsets: ErasedOffsets) -> None:
    file = io.BytesIO()
    parquet.write_table(offsets_table(offsets), file, compression="zstd")
    open_certificates(settings).put_offsets(run, file.getvalue())


def get_offsets(settings: ErasureSettings, run: str) -> ErasedOffsets:
    return read_offsets(open_certificates(settings).get_offsets(run))
