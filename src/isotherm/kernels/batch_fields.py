"""Numbers of the record batch format. The same values as in isotherm.record.batch_header and
isotherm.types, which kernels may not import."""

from __future__ import annotations

import numpy as np

MAGIC = 2
LOG_OVERHEAD = 12
HEADER_SIZE = 61
OFFSET_MAX = 2**63 - 1

CODEC_MASK = 0x07
# Set for LogAppendTime.
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

# 64 bits wide, so that a variable that begins with it has one type for Numba.
NO_TIMESTAMP = np.int64(-1)
