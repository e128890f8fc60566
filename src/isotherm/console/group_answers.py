"""The part of the page "Answers" about groups: who is behind, why, and what helps. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from isotherm.console.answers import GroupReading, group_rows
from isotherm.storage_view.cluster_storage import ClusterStorage
from isotherm.storage_view.group_lag import ReadsFrom
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.rows import Row

FAR_BEHIND_S = 3600
"""A group whose next record is older reads history, or cannot keep up."""


class GroupCause(enum.StrEnum):
    """Why a group is behind, the worst first."""

    UNKNOWN = "its offsets are unknown"
    DELETED = "its next records were deleted"
    NOBODY = "nobody reads"
    STANDS = "it does not move"
    FAR_BEHIND = "it is far behind"


_REMEDIES = {
    GroupCause.DELETED: "The log begins after the group's offset: its reset policy decides where it"
    " goes on, and records are missing. Raise the topic's retention.",
    GroupCause.NOBODY: "The group has no members. Start its consumers, or delete it: isotherm"
    " groups delete.",
    GroupCause.STANDS: "Its members commit nothing, though there are records. Look at the"
    " consumers' logs.",
    GroupCause.FAR_BEHIND: "Its members read records older than an hour. Add members, up to the"
    " number of partitions, or wait if they read history on purpose.",
}
_SHARE_REMEDIES = {
    GroupCause.STANDS: "The records at its start offset are not done: members hold them, or they"
    " are delivered again and again until share.delivery.count.limit archives them. Of those"
    " that are archived, kafka_server_sharegroupmetrics_recordacknowledgements_total counts what"
    " members reject, and kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total what"
    " they do not acknowledge in time.",
    GroupCause.FAR_BEHIND: "Its members read records older than an hour. Add members: share groups"
    " may have more of them than partitions.",
    GroupCause.DELETED: "The log begins after the group's start offset: the records in between are"
    " archived, and nobody got them. Raise the topic's retention.",
}
_ORDER = {cause: place for place, cause in enumerate(GroupCause)}


def group_answers(
    groups: Iterable[GroupState], storage: ClusterStorage, reading: GroupReading
) -> list[Row]:
    """The groups that somebody may have to act on: the worst causes first, then the largest lag.
    `offsets_per_s` is null before the second look. A group stands only if it was looked at for a
    whole window: many commit once a minute."""
    may_stand = reading.progress.is_whole_window
    rows = [
        _answer(row, cause)
        for row in group_rows(groups, storage, reading)
        if (cause := _cause(row, may_stand=may_stand)) is not None
    ]
    return sorted(rows, key=lambda row: (_ORDER[row["cause"]], -row["lag"]))


def _cause(row: Row, *, may_stand: bool) -> GroupCause | None:
    if row["group_error"] is not None:
        return GroupCause.UNKNOWN
    if row["lag"] <= 0:
        return None
    if ReadsFrom.DELETED in row["reads_from"]:
        return GroupCause.DELETED
    if row["state"].lower() in ("empty", "dead"):
        return GroupCause.NOBODY
    if may_stand and row["offsets_per_s"] == 0:
        return GroupCause.STANDS
    if (row["age_s"] or 0) >= FAR_BEHIND_S:
        return GroupCause.FAR_BEHIND
    return None


def _answer(row: Row, cause: GroupCause) -> Row:
    names: Sequence[str] = ("group", "type", "state", "lag", "remote_lag", "age_s", "offsets_per_s")
    remedies = {**_REMEDIES, **(_SHARE_REMEDIES if row["type"].lower() == "share" else {})}
    remedy = row["group_error"] if cause is GroupCause.UNKNOWN else remedies[cause]
    return {**{name: row[name] for name in names}, "cause": cause, "remedy": remedy}
