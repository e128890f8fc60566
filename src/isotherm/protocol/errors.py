"""Errors for malformed bytes from a peer."""

from __future__ import annotations

from isotherm.errors import RejectedError


class ProtocolError(RejectedError):
    """Bytes from a peer are not a valid message: too short, too long, or malformed.

    The rest of the stream cannot be trusted: the caller closes the connection.
    """
