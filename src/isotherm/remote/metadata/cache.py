"""The old name of `isotherm.remote.metadata.state.cache`; it goes with the next release."""

from __future__ import annotations

import warnings

from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache

__all__ = ["RemoteLogMetadataCache"]

warnings.warn(
    "isotherm.remote.metadata.cache is isotherm.remote.metadata.state.cache now",
    DeprecationWarning,
    stacklevel=2,
)
