"""`isotherm groups reset-offsets`, `delete-offsets` and `delete`, with the rules of Kafka's
kafka-consumer-groups and kafka-share-groups."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from isotherm.cli.client import (
    REQUEST_TIMEOUT_S,
    admin_client,
    check_led,
    one_line_errors,
    partitions_of,
    wait_for_all,
)
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import console, error_console, print_rows
from isotherm.cli.point_in_time import time_ms
from isotherm.cli.share_groups import ShareGroups, connected
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError, IsothermError, RejectedError
from isotherm.printable import printable
from isotherm.types import Offset, TimestampMs
from isotherm.types import TopicPartition as Partition

Place: TypeAlias = tuple[str, int]

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_DURATION_UNITS_S = (86_400, 3_600, 60, 1)
# A group without members; Kafka's tool refuses the other states.
_INACTIVE = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
_INACTIVE_SHARE = ("empty", "dead")

Group = Annotated[str, typer.Argument(metavar="GROUP")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without, only show the plan.")]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and the next offset of a partition."""

    earliest: Offset
    latest: Offset

    def nearest(self, offset: Offset) -> Offset:
        return min(max(offset, self.earliest), self.latest)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a group shall read on: exactly one field is set. Raises ConfigError otherwise."""

    to_earliest: bool | None = None
    to_latest: bool | None = None
    to_offset: Offset | None = None
    time_ms: TimestampMs | None = None
    back_ms: int | None = None
    shift_by: int | None = None
    from_file: Mapping[Place, Offset] | None = None

    def __post_init__(self) -> None:
        values = [getattr(self, field.name) for field in fields(self)]
        if len(values) - values.count(None) != 1:
            raise ConfigError(
                "choose one of --to-earliest, --to-latest, --to-offset, --to-datetime,"
                " --by-duration, --shift-by and --from-file"
            )

    def check_for_share_group(self) -> None:
        """Raise ConfigError for what kafka-share-groups does not have."""
        if not self.to_earliest and not self.to_latest and self.time_ms is None:
            raise ConfigError(
                "a share group is reset by --to-earliest, --to-latest or --to-datetime"
            )


@with_groups
def reset_offsets(
    *,
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:P,...]",
            help="A topic, or some partitions of it. Repeatable.",
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions with offsets of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="OFFSET")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="2026-03-01T12:00:00.000 (UTC unless it names a zone), or ms since 1970.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="DURATION", help="Back by P1DT2H3M4S.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forwards, or back if negative.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="CSV", help="Lines of topic,partition,offset."),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Create a share group if the group does not exist.")
    ] = False,
    execute: Execute = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Set the offsets from which a group reads on. Shows the plan; --execute does it.

    The group must have no active members. An offset outside of a partition becomes its nearest
    end. After the last record of a time the result is the end.

    A share group goes to the earliest or latest offset, or to a time. It delivers every record from
    there on again, whatever was acknowledged.

    isotherm groups reset-offsets readers --topic flights:0,1 --to-earliest --execute
    """
    target = Target(
        to_earliest=to_earliest or None,
        to_latest=to_latest or None,
        to_offset=to_offset,
        time_ms=None if to_datetime is None else time_ms(to_datetime),
        back_ms=None if by_duration is None else duration_ms(by_duration),
        shift_by=shift_by,
        from_file=None if from_file is None else read_offsets(from_file),
    )
    if from_file is None and (not topic) == (not all_topics):
        raise ConfigError("choose one of --topic and --all-topics")
    with (
        one_line_errors(bootstrap_server),
        connected(bootstrap_server, client.properties) as share_groups,
    ):
        admin = admin_client(bootstrap_server, client.properties)
        is_share = _is_share(share_groups, group) or share
        offsets: Mapping[Place, Offset | None]
        committed: Mapping[Place, Offset] = {}
        if is_share:
            target.check_for_share_group()
            offsets = _start_offsets(share_groups, group)
        else:
            _check_inactive(admin, group)
            offsets = committed = committed_offsets(admin, group)
        chosen = offsets if all_topics else _places(admin, topic or [])
        new = _new_offsets(admin, target, committed, sorted(target.from_file or chosen))
        if execute and new:
            if is_share:
                share_groups.set_start_offsets(group, {Partition(*p): to for p, to in new.items()})
            else:
                _commit(admin, group, new)
    before = "start_offset" if is_share else "committed_offset"
    rows = [
        {"topic": p[0], "partition": p[1], before: offsets.get(p), "new_offset": to}
        for p, to in new.items()
    ]
    print_rows(["topic", "partition", before, "new_offset"], rows, as_json=as_json)
    if not as_json:
        done = "done" if execute else "a plan: --execute does it"
        console().print(f"\n{len(rows)} partitions of group {group}: {done}")


@with_groups
def delete(
    *,
    group: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    execute: Execute = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    client: ClientOptions,
) -> None:
    """Delete groups and their offsets. Shows the plan; --execute does it.

    A group with active members is refused.
    """
    with (
        one_line_errors(bootstrap_server),
        connected(bootstrap_server, client.properties) as share_groups,
    ):
        admin = admin_client(bootstrap_server, client.properties)
        counts = {group_id: _offset_count(admin, share_groups, group_id) for group_id in group}
        # The request is the same for every type of group.
        answered = (
            admin.delete_consumer_groups(list(counts), request_timeout=REQUEST_TIMEOUT_S)
            if execute
            else {}
        )
        failures: list[IsothermError] = []
        for group_id, future in answered.items():
            try:
                wait_for_all({group_id: future}, "group")
            except IsothermError as error:
                failures.append(error)
                del counts[group_id]
    for group_id, count in counts.items():
        words = "deleted" if execute else "would delete"
        console().print(f"{words} group {group_id} with {count}")
    if not execute:
        console().print("a plan: --execute does it")
    # The others are deleted, which nobody can take back.
    for failure in failures[:-1]:
        error_console().print(f"isotherm: {printable(str(failure))}", soft_wrap=True)
    if failures:
        raise failures[-1]


@with_groups
def delete_offsets(
    *,
    group: Group,
    topic: Annotated[list[str], typer.Option("--topic", metavar="TOPIC", help="Repeatable.")],
    execute: Execute = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    client: ClientOptions,
) -> None:
    """Forget where a share group stands in topics. Shows the plan; --execute does it.

    The group must have no active members. When members subscribe to the topic again, the group
    begins by its share.auto.offset.reset.
    """
    topics = sorted(set(topic))
    with (
        one_line_errors(bootstrap_server),
        connected(bootstrap_server, client.properties) as share_groups,
    ):
        if not _is_share(share_groups, group):
            raise RejectedError(f"no such share group group={group}")
        places = share_groups.offsets(group)
        counts = {name: sum(place.topic == name for place in places) for name in topics}
        unknown = [name for name, count in counts.items() if not count]
        if unknown:
            raise RejectedError(
                f"the group has no offsets of these topics group={group} topics={unknown}"
            )
        if execute:
            share_groups.delete_offsets(group, topics)
    for name, count in counts.items():
        words = "deleted" if execute else "would delete"
        console().print(f"{words} the offsets of {count} partitions of {name} in group {group}")
    if not execute:
        console().print("a plan: --execute does it")


def _offset_count(admin: AdminClient, share_groups: ShareGroups, group: str) -> str:
    if _is_share(share_groups, group):
        return f"{len(share_groups.offsets(group))} start offsets"
    if not _check_inactive(admin, group):
        raise RejectedError(f"no such group group={group}")
    return f"{len(committed_offsets(admin, group))} committed offsets"


def _is_share(share_groups: ShareGroups, group: str) -> bool:
    """Whether this is a share group. Raises RejectedError while it has active members."""
    state = share_groups.state(group)
    if state is not None and state not in _INACTIVE_SHARE:
        raise _active_error(group, state)
    return state is not None


def _start_offsets(share_groups: ShareGroups, group: str) -> dict[Place, Offset | None]:
    return {
        (place.topic, place.partition): offset.start_offset
        for place, offset in share_groups.offsets(group).items()
    }


def _active_error(group: str, state: str) -> RejectedError:
    return RejectedError(
        f"the group has active members group={group} state={state} hint='stop its consumers first'"
    )


def _new_offsets(
    admin: AdminClient, target: Target, committed: Mapping[Place, Offset], places: Sequence[Place]
) -> dict[Place, Offset]:
    bounds = _bounds(admin, places)
    offsets: Mapping[Place, Offset]
    if target.from_file is not None:
        offsets = target.from_file
    elif target.time_ms is not None:
        offsets = _at_time(admin, bounds, target.time_ms)
    elif target.back_ms is not None:
        offsets = _at_time(admin, bounds, time_before(SystemClock().now_ms(), target.back_ms))
    elif target.shift_by is not None:
        offsets = shifted(committed, places, target.shift_by)
    elif target.to_offset is not None:
        offsets = dict.fromkeys(places, target.to_offset)
    else:
        offsets = {p: b.earliest if target.to_earliest else b.latest for p, b in bounds.items()}
    return {place: bounds[place].nearest(offsets[place]) for place in places}


def _commit(admin: AdminClient, group: str, offsets: Mapping[Place, Offset]) -> None:
    changes = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    request = ConsumerGroupTopicPartitions(group, changes)
    altered = admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
    for partition in altered[group].result(REQUEST_TIMEOUT_S).topic_partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)


def read_offsets(path: Path) -> dict[Place, Offset]:
    """The lines `topic,partition,offset` of a file, as kafka-consumer-groups --export prints them.
    Raises ConfigError, which names the line."""
    offsets: dict[Place, Offset] = {}
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read path={path}") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            topic, partition, offset = line
            # Kafka quotes each field.
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise ConfigError(
                f"not topic,partition,offset path={path} line={number} value={','.join(line)!r}"
            ) from None
    if not offsets:
        raise ConfigError(f"the file names no offsets path={path}")
    return offsets


def duration_ms(text: str) -> int:
    """The milliseconds of a duration of ISO 8601, of days and less."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ConfigError(f"not a duration value={text!r} hint='P1D, PT2H or P1DT2H3M4S'")
    parts = zip(match.groups(), _DURATION_UNITS_S, strict=True)
    return sum(round(float(part) * unit * 1000) for part, unit in parts if part)


def time_before(now_ms: TimestampMs, back_ms: int) -> TimestampMs:
    """Raises ConfigError for a time before 1970, which no request for offsets may name."""
    if back_ms > now_ms:
        raise ConfigError(
            "the duration goes back before 1970 option=--by-duration hint='--to-earliest'"
        )
    return now_ms - back_ms


def shifted(
    committed: Mapping[Place, Offset], places: Sequence[Place], shift_by: int
) -> dict[Place, Offset]:
    """The committed offsets after a shift. Raises ConfigError for a partition without one."""
    without = [f"{topic}-{number}" for topic, number in places if (topic, number) not in committed]
    if without:
        raise ConfigError(
            "a partition without a committed offset cannot be shifted"
            f" partitions={','.join(without)} hint='--to-earliest'"
        )
    return {place: committed[place] + shift_by for place in places}


def committed_offsets(admin: AdminClient, group: str) -> dict[Place, Offset]:
    """The group's committed offsets by partition. Empty for an unknown group."""
    request = ConsumerGroupTopicPartitions(group)
    answered = admin.list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
    answers = answered[group].result(REQUEST_TIMEOUT_S).topic_partitions
    return {
        (answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0
    }


def _check_inactive(admin: AdminClient, group: str) -> bool:
    """Whether the group exists. Raises RejectedError while it has active members."""
    described = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)
    try:
        state = described[group].result(REQUEST_TIMEOUT_S).state
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return False
        raise
    if state not in _INACTIVE:
        raise _active_error(group, state.name.lower())
    return bool(state is ConsumerGroupState.EMPTY)


def _places(admin: AdminClient, topics: Iterable[str]) -> set[Place]:
    places: set[Place] = set()
    for text in topics:
        name, _, numbers = text.partition(":")
        try:
            chosen = (
                {int(number) for number in numbers.split(",")}
                if numbers
                else {partition.partition for partition in partitions_of(admin, name)}
            )
        except ValueError:
            raise ConfigError(f"not TOPIC or TOPIC:0,1 option=--topic value={text!r}") from None
        places |= {(name, number) for number in chosen}
    return places


def _bounds(admin: AdminClient, places: Sequence[Place]) -> dict[Place, Bounds]:
    for topic in sorted({topic for topic, _ in places}):
        existing = {partition.partition for partition in partitions_of(admin, topic)}
        chosen = {number for name, number in places if name == topic}
        if not chosen <= existing:
            missing = sorted(chosen - existing)
            raise ConfigError(f"no such partitions topic={topic} partitions={missing}")
        check_led(admin, topic, chosen)
    earliest = _listed(admin, places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    latest = _listed(admin, places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {place: Bounds(earliest[place], latest[place]) for place in places}


def _at_time(
    admin: AdminClient, bounds: Mapping[Place, Bounds], time_ms: TimestampMs
) -> dict[Place, Offset]:
    spec = OffsetSpec.for_timestamp(time_ms)
    offsets = _listed(admin, list(bounds), spec)
    # Without a record of that time or a later one the answer is -1.
    return {p: offsets[p] if offsets[p] >= 0 else bounds[p].latest for p in bounds}


def _listed(admin: AdminClient, places: Sequence[Place], spec: OffsetSpec) -> dict[Place, Offset]:
    if not places:
        return {}
    request = {TopicPartition(*place): spec for place in places}
    answered = admin.list_offsets(request, request_timeout=REQUEST_TIMEOUT_S)
    return {
        (place.topic, place.partition): future.result(REQUEST_TIMEOUT_S).offset
        for place, future in answered.items()
    }
