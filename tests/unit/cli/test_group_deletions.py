"""`isotherm groups delete` of several groups, of which the cluster refuses some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from isotherm.cli import group_resets
from isotherm.cli.main import app
from isotherm.errors import BrokerUnreachableError


class _Admin:
    """A cluster that lets the client delete no group whose name begins with "foreign"."""

    def delete_consumer_groups(self, groups: Sequence[str], **_: object) -> dict[str, Any]:
        return {group: self._answer(group) for group in groups}

    def _answer(self, group: str) -> Future[None]:
        future: Future[None] = Future()
        if group.startswith("foreign"):
            refusal = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "not allowed")
            future.set_exception(KafkaException(refusal))
        else:
            future.set_result(None)
        return future


def test_groups_beside_refused_ones_are_said_to_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_resets, "admin_client", lambda *_: _Admin())
    monkeypatch.setattr(group_resets, "connected", lambda *_: nullcontext())
    monkeypatch.setattr(group_resets, "_offset_count", lambda *_: "2 committed offsets")
    command = ["groups", "delete", "foreign-1", "own-1", "own-2", "own-2", "foreign-2", "--execute"]
    result = CliRunner().invoke(app, command)
    assert result.stdout.splitlines() == [
        f"deleted group own-{number} with 2 committed offsets" for number in (1, 2)
    ]
    assert result.stderr == "isotherm: not allowed group=foreign-1\n"
    assert isinstance(result.exception, BrokerUnreachableError)
    assert str(result.exception) == "not allowed group=foreign-2"
