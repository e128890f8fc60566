"""Ends a process at its n-th durable change, to see what a crash there leaves."""

from __future__ import annotations

from typing import Any

from isotherm.errors import RemoteStorageError
from isotherm.remote.storage.object_client import ObjectClient


class CutOffError(BaseException):
    """The process ends here. A BaseException, so that no handler of errors catches it."""


class Countdown:
    """Ends the process at the n-th durable change. With `is_full` the store refuses that change and
    all later ones instead, until `left` is None again."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.is_full = False
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise self._error()

    @property
    def is_over(self) -> bool:
        return self.left is not None and self.left < 0

    def _error(self) -> BaseException:
        return RemoteStorageError("No space left on device") if self.is_full else CutOffError()


class MortalClient(ObjectClient):
    """Counts each change of the store as a step of the countdown."""

    countdown: Countdown

    def put(self, key: str, content: Any) -> None:
        self.countdown.step()
        super().put(key, content)

    def delete(self, key: str) -> None:
        self.countdown.step()
        super().delete(key)
