"""The settings of an erasure."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules
from isotherm.remote.erasure.redaction import FieldPath
from isotherm.remote.rewriting.journal import RunKind
from isotherm.spark.jobs.rewrite_run import RewriteSettings, source_and_target
from isotherm.spark.options import SourceOptions
from isotherm.types import TimestampMs


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureSettings(RewriteSettings):
    """`fields` are those that REDACT replaces."""

    action: EraseAction
    fields: tuple[FieldPath, ...] = ()

    @property
    def rules(self) -> ErasureRules:
        return ErasureRules(
            now_ms=self.now_ms,
            fetch_bytes=self.fetch_bytes,
            action=self.action,
            fields=self.fields,
        )


def settings_of(
    options: SourceOptions,
    *,
    now_ms: TimestampMs,
    action: EraseAction,
    fields: tuple[FieldPath, ...] = (),
    keep_old_ms: int = 0,
    to_url: str | None = None,
    to_storage: dict[str, str] | None = None,
) -> ErasureSettings:
    """Settings from the options of the source, and those of a copy's target
    (`source_and_target`)."""
    source, target = source_and_target(options, to_url, to_storage)
    return ErasureSettings(
        kind=RunKind.ERASURE,
        source=source,
        target=target,
        now_ms=now_ms,
        fetch_bytes=options.fetch_bytes,
        keep_old_ms=keep_old_ms,
        action=action,
        fields=fields,
    )
