"""`isotherm serve` with a fault, which a test of a framework has to notice.

python broken_broker.py FAULT serve ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.partitions import fetch_reads
from isotherm.broker.partitions.partition import Partition
from isotherm.cli.main import main
from isotherm.record.batch_header import HEADER_SIZE, encode_batch, read_batch_header

_IS_TRANSACTIONAL = 0x10
_DOUBLED_TOPICS = ("input", "output")


def hide_aborted_transactions() -> None:
    """Give read_committed consumers the records of aborted transactions too."""

    def none(_transactions: Sequence[object]) -> list[tuple[int, int]]:
        return []

    fetch_reads._aborted = none


def lose_transactional_offsets() -> None:
    """Acknowledge offsets of transactions without storing them."""

    def commit(
        _self: GroupCoordinator,
        _group: str,
        _producer: object,
        _by: object,
        offsets: Mapping[Any, Any],
    ) -> Mapping[Any, ErrorCode]:
        return dict.fromkeys(offsets, ErrorCode.none)

    GroupCoordinator.commit_transactional_offsets = commit  # type: ignore[method-assign]


def double_a_batch() -> None:
    """Append the third batch of each partition twice in each life of the broker.

    The duplicate has no producer's sequence, so that nothing recognizes it.
    """
    seen: dict[Any, int] = {}
    append = Partition.append

    def append_twice(self: Partition, records: Any, **how: Any) -> Any:
        header = read_batch_header(records)
        payload = bytes(records[HEADER_SIZE : header.size_in_bytes])
        info = append(self, records, **how)
        seen[self.topic_partition] = count = seen.get(self.topic_partition, 0) + 1
        if count == 3 and self.topic_partition.topic in _DOUBLED_TOPICS:
            attributes = header.attributes & ~_IS_TRANSACTIONAL
            nobody = header._replace(
                producer_id=-1, producer_epoch=-1, base_sequence=-1, attributes=attributes
            )
            append(self, encode_batch(nobody, payload), **how)
        return info

    Partition.append = append_twice  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (hide_aborted_transactions, lose_transactional_offsets, double_a_batch)
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    main()
