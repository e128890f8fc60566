"""Compares a claim of the metadata about a leader epoch with the batch that it is about."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.plan.epoch_claims import EpochClaim
from isotherm.spark.plan.planning import SegmentRead
from isotherm.spark.reading.proven_batches import OtherEpochError
from isotherm.spark.reading.read_errors import SegmentReadError, WrongRowsError, named
from isotherm.spark.reading.readers import locate, runs_of_proof

_logger = logging.getLogger(__name__)

_PROOF_THREADS = 16


class WrongEpochsError(WrongRowsError):
    """The leader epochs in a segment's metadata are not those of its log. They have decided which
    segments are read."""


def prove_epochs(
    claims: Sequence[EpochClaim], storage: RemoteStorageManager, *, may_be_unreadable: bool = False
) -> None:
    """Compare claims with their batches, on some threads. A copy that cannot be read contradicts
    nothing: its records are read from another segment. Then, and with `may_be_unreadable` for any
    segment, a warning is logged. Otherwise raises as `prove_epoch`."""

    def prove(claim: EpochClaim) -> None:
        try:
            prove_epoch(claim, storage)
        except WrongRowsError:
            raise
        except SegmentReadError as error:
            if not (may_be_unreadable or claim.is_of_copy):
                raise
            _logger.warning("leader epochs of the metadata are used without a proof: %s", error)

    with ThreadPoolExecutor(_PROOF_THREADS, thread_name_prefix="isotherm-epochs") as pool:
        list(pool.map(prove, claims))


def prove_epoch(claim: EpochClaim, storage: RemoteStorageManager) -> None:
    """Raise WrongEpochsError if the batch at the claim's offset has another leader epoch, and
    SegmentReadError as a read does. Fetches an index and the batches around the offset."""
    read = SegmentRead(claim.segment, claim.offset, claim.offset + 1)
    located = locate(read, storage)
    try:
        with named(read):
            # The index may lead to a batch before that of the claim. Each is compared with the
            # epochs of the segment.
            for _ in runs_of_proof(read, storage, located):
                pass
    except SegmentReadError as error:
        if isinstance(error.__cause__, OtherEpochError):
            raise WrongEpochsError(str(error), read) from error
        raise
