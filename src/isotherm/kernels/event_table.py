"""The table of decoded metadata events: one row for each record. Loads no kernel.

For the format of values see serde.py of isotherm.remote.metadata, for keys keys.py.
"""

from __future__ import annotations

import numpy as np

EVENT = np.dtype(
    [
        ("kind", np.int64),
        ("state", np.int64),
        # Offsets of the whole segment, `end` inclusive. A tombstone has the `end` and `leader` of
        # its key.
        ("start", np.int64),
        ("end", np.int64),
        ("leader", np.int64),
        ("max_timestamp", np.int64),
        ("event_timestamp", np.int64),
        ("broker", np.int64),
        ("size", np.int64),
        ("txn_index_empty", np.int64),
        # Positions in the column of values. `custom_size` is -1 for null.
        ("epochs_start", np.int64),
        ("epochs_count", np.int64),
        ("custom_start", np.int64),
        ("custom_size", np.int64),
        # Big-endian halves of the topic id and of the segment's id.
        ("topic_high", np.int64),
        ("topic_low", np.int64),
        ("id_high", np.int64),
        ("id_low", np.int64),
        ("partition", np.int64),
        ("name_hash", np.int64),
    ]
)

ADD = 0
UPDATE = 1
PARTITION_DELETE = 2
PUT = 3
TOMBSTONE = 4
PARTITION_TOMBSTONE = 5
ODD = 6
# A tombstone that was ODD and that Python has checked: its key names no segment and no partition.
NOTHING = 7

# Bytes of a leader epoch in a value: epoch i32, start offset i64, and a byte for no tagged fields.
EPOCH_SIZE = 13
