"""Compares a claim of the metadata about a leader epoch with the batch that it is about."""

from __future__ import annotations

from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.plan.epoch_claims import EpochClaim
from isotherm.spark.plan.planning import SegmentRead
from isotherm.spark.reading.proven_batches import OtherEpochError
from isotherm.spark.reading.readers import (
    SegmentReadError,
    WrongRowsError,
    locate,
    named,
    runs_of_proof,
)


class WrongEpochsError(WrongRowsError):
    """The leader epochs in a segment's metadata are not those of its log. They have decided which
    segments are read."""


def prove_epoch(claim: EpochClaim, storage: RemoteStorageManager) -> None:
    """Raise WrongEpochsError if the batch at the claim's offset has another leader epoch, and
    SegmentReadError as a read does. Fetches an index and the batches around the offset."""
    read = SegmentRead(claim.segment, claim.offset, claim.offset + 1)
    located = locate(read, storage)
    try:
        with named(read):
            # The index may lead to a batch before that of the claim. Each is compared with the epochs
            # of the segment.
            for _ in runs_of_proof(read, storage, located):
                pass
    except SegmentReadError as error:
        if isinstance(error.__cause__, OtherEpochError):
            raise WrongEpochsError(str(error), read) from error
        raise
