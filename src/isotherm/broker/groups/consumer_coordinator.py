"""Groups of the consumer protocol on this broker: the shell around `ConsumerGroup`.

A request works on a copy of its group. The copy's records are written as one batch, and only then
does the copy take the group's place: a request that fails, at whatever point, changes nothing.
Event loop thread only. Source: Kafka GroupCoordinatorService, GroupMetadataManager.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.controller.image import MetadataImage
from isotherm.broker.groups import consumer_records
from isotherm.broker.groups.consumer_group import (
    ConsumerGroup,
    HeartbeatResult,
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.groups.consumer_member import JOIN_EPOCH
from isotherm.broker.groups.records import GroupMetadataKey, GroupRecord
from isotherm.broker.groups.shards import GroupShard, GroupShards
from isotherm.broker.groups.topic_catalog import TopicCatalog
from isotherm.errors import IsothermError
from isotherm.types import uuid_to_text

logger = logging.getLogger(__name__)

# A timer that could not be carried out (the log refused the records) is tried again after this.
EXPIRY_RETRY_MS = 1000


class _Timer(NamedTuple):
    deadline_ms: int
    handle: asyncio.TimerHandle


class ConsumerGroupCoordinator:
    def __init__(
        self,
        shards: GroupShards,
        find_image: Callable[[], MetadataImage],
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._shards = shards
        self._find_image = find_image
        self._rng = rng
        self._loop = loop
        self._catalog: TopicCatalog | None = None
        self._timers: dict[str, _Timer] = {}

    @property
    def heartbeat_interval_ms(self) -> int:
        return self._shards.consumer_settings.heartbeat_interval_ms

    def heartbeat(self, group_id: str, beat: MemberHeartbeat) -> HeartbeatResult:
        """Raises MemberRejectedError, InvalidRegularExpressionError, and what `of_group` raises."""
        shard = self._shards.of_group(group_id)
        tombstones: list[GroupRecord] = []
        group = shard.consumer_groups.get(group_id)
        if group is None:
            tombstones = self._check_new_group(shard, group_id, beat)
            group = ConsumerGroup(group_id, self._shards.consumer_settings)
        changed = group.copy()
        now_ms = self._shards.now_ms()
        wall_ms = now_ms + self._shards.wall_offset_ms()
        result, records = changed.heartbeat(beat, self._current_catalog(), now_ms, wall_ms)
        self._replace(shard, changed, tombstones + records)
        return result

    def _check_new_group(
        self, shard: GroupShard, group_id: str, beat: MemberHeartbeat
    ) -> list[GroupRecord]:
        """A group is made by a member that joins, also in the place of an empty classic one."""
        classic = shard.groups.get(group_id)
        if beat.epoch != JOIN_EPOCH or (classic is not None and not classic.is_empty):
            raise _no_such_group(group_id)
        if classic is None:
            return []
        return [GroupRecord(GroupMetadataKey(group=group_id), None)]

    def leave(
        self, group_id: str, member_id: str, instance_id: str | None, epoch: int
    ) -> HeartbeatResult:
        shard = self._shards.of_group(group_id)
        changed = self.find(group_id).copy()
        result, records = changed.leave(member_id, instance_id, epoch)
        self._replace(shard, changed, records)
        return result

    def find(self, group_id: str) -> ConsumerGroup:
        """MemberRejectedError (GROUP_ID_NOT_FOUND) if there is none of this protocol."""
        group = self._shards.of_group(group_id).consumer_groups.get(group_id)
        if group is None:
            raise _no_such_group(group_id)
        return group

    def make_way(self, shard: GroupShard, group_id: str) -> bool:
        """Let a classic group have this name, if nobody is in the group that has it."""
        group = shard.consumer_groups.get(group_id)
        if group is not None and group.is_empty:
            self.forget(shard, group)
        return group is None or group.is_empty

    def forget(self, shard: GroupShard, group: ConsumerGroup) -> None:
        """Take an empty group out of the log and out of memory; its offsets stay."""
        self._shards.append(shard, consumer_records.group_tombstones(group))
        del shard.consumer_groups[group.group_id]

    def new_member_id(self) -> str:
        """For a client that leaves it to the broker (version 0)."""
        return uuid_to_text(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _current_catalog(self) -> TopicCatalog:
        image = self._find_image()
        if self._catalog is None or self._catalog.version != image.end_offset:
            self._catalog = TopicCatalog(image)
        return self._catalog

    def _replace(
        self, shard: GroupShard, changed: ConsumerGroup, records: Sequence[GroupRecord]
    ) -> None:
        if records:
            self._shards.append(shard, records)
        shard.groups.pop(changed.group_id, None)
        shard.consumer_groups[changed.group_id] = changed
        self._schedule(shard, changed)

    # ---- time

    def resume(self, shard: GroupShard) -> None:
        for group in shard.consumer_groups.values():
            self._schedule(shard, group)

    def resign(self) -> None:
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    def _schedule(self, shard: GroupShard, group: ConsumerGroup) -> None:
        """A timer that is early does no harm; only one that would be late is set anew."""
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is None:
            return
        timer = self._timers.get(group.group_id)
        if timer is not None:
            if timer.deadline_ms <= deadline_ms:
                return
            timer.handle.cancel()
        self._set_timer(shard, group.group_id, deadline_ms)

    def _set_timer(self, shard: GroupShard, group_id: str, deadline_ms: int) -> None:
        delay_s = max(0, deadline_ms - self._shards.now_ms() + 1) / 1000
        handle = self._loop.call_later(delay_s, self._expire, shard, group_id)
        self._timers[group_id] = _Timer(deadline_ms, handle)

    def _expire(self, shard: GroupShard, group_id: str) -> None:
        del self._timers[group_id]
        group = shard.consumer_groups.get(group_id)
        if group is None:
            return
        changed = group.copy()
        now_ms = self._shards.now_ms()
        records = changed.expire(now_ms)
        try:
            self._replace(shard, changed, records)
        except IsothermError:
            logger.exception("members are not removed group_id=%s", group_id)
            self._set_timer(shard, group_id, now_ms + EXPIRY_RETRY_MS)


def _no_such_group(group_id: str) -> MemberRejectedError:
    return MemberRejectedError(
        ErrorCode.group_id_not_found, f"no such consumer group group_id={group_id}"
    )
