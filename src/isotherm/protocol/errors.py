"""What may be wrong with bytes that a peer sent."""

from __future__ import annotations

from isotherm.errors import RejectedError


class ProtocolError(RejectedError):
    """Bytes from a peer are not the message they claim to be: too short, too long, or malformed.

    The stream cannot be trusted after it; the caller closes the connection.
    """


class FrameTooLargeError(ProtocolError):
    """A frame announces a size that is negative or above what this listener accepts."""
