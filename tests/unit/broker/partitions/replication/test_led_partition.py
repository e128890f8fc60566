"""Produce, fetch and the high watermark of a partition with followers on other brokers."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import threading
import uuid
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.delete_records.v2 import request as v2
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import request as v11

from isotherm.broker.apis import delete_records, list_offsets
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.image import ConfigResource, MetadataImage, TopicImage
from isotherm.broker.metadata.metadata_records import TOPIC_RESOURCE
from isotherm.broker.partitions.replica_metrics import ReplicaMetrics
from isotherm.broker.partitions.replica_tasks import isr_shrinking
from isotherm.broker.partitions.replication.configured_quotas import leader_quota
from isotherm.broker.partitions.replication.replica_state import ANY_BROKER_EPOCH
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.clock import SystemClock
from isotherm.config.replication import RACK_AWARE_SELECTOR, ReplicationConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.broker.partitions.replication.conftest import FIRST, ME, SECOND, Leader, settle


def size_of(response: Any) -> int:
    return sum(map(len, response.records))


# ---- acks=all and the high watermark


def test_acks_all_is_answered_when_every_member_has_the_records(leader: Leader) -> None:
    async def scenario() -> None:
        waiting = leader.produce(b"a", b"b")
        leader.fetch_now(2, replica=FIRST)
        await settle()
        assert not waiting.done()
        assert leader.partition.log.high_watermark == 0
        leader.fetch_now(2, replica=SECOND)
        answer = await waiting
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        assert leader.partition.log.high_watermark == 2

    leader.run(scenario)


def test_request_that_waits_for_the_replicas_alone_lets_the_next_begin(leader: Leader) -> None:
    async def scenario() -> None:
        waiting = leader.handle_produce(b"a")
        assert isinstance(waiting, LaterResponse)
        assert waiting.is_done_but_for_answer
        # The record is in the log, so the next request's records come after it.
        assert leader.partition.log.log_end_offset == 1
        waiting.future.cancel()

    leader.run(scenario)


def test_acks_of_the_leader_are_answered_at_once(leader: Leader) -> None:
    async def scenario() -> None:
        answer = leader.produce(b"a", acks=1)
        assert answer.error_code == ErrorCode.none
        assert leader.partition.log.high_watermark == 0

    leader.run(scenario)


def test_too_few_members_refuse_acks_all_before_the_append(leader: Leader) -> None:
    async def scenario() -> None:
        assert leader.produce(b"a").error_code == ErrorCode.not_enough_replicas
        assert leader.partition.log.log_end_offset == 0
        assert leader.produce(b"a", acks=1).error_code == ErrorCode.none
        # KIP-966: below min ISR the high watermark stands still, because an election from the
        # eligible replicas may lose these records.
        assert leader.partition.log.high_watermark == 0

    leader.run(scenario, ME, FIRST, min_isr=3)


def test_members_that_left_after_the_append_get_an_error(leader: Leader) -> None:
    """The controller removes SECOND, so the record is committed without it: by fewer replicas than
    the producer requires."""

    async def scenario() -> None:
        waiting = leader.produce(b"a")
        # FIRST and this broker have the record; the image removes SECOND first.
        leader.partition.make_leader(leader.image(ME, FIRST, partition_epoch=11))
        leader.fetch_now(1, replica=FIRST)
        leader.parts.replica_manager.update_config("t", TopicConfig(min_insync_replicas=3))
        leader.parts.replica_manager.purgatory.notify(leader.partition.topic_partition)
        answer = await waiting
        assert answer.error_code == ErrorCode.not_enough_replicas_after_append

    leader.run(scenario, ME, FIRST, SECOND, min_isr=2)


def test_acks_all_times_out(leader: Leader) -> None:
    async def scenario() -> None:
        answer = await leader.produce(b"a", timeout_ms=1)
        assert answer.error_code == ErrorCode.request_timed_out
        assert leader.partition.log.log_end_offset == 1

    leader.run(scenario)


@pytest.mark.parametrize("comes_back", [False, True])
def test_acks_all_ends_when_the_leadership_is_lost(leader: Leader, comes_back: bool) -> None:
    """The error is the same if this broker leads again: the records may have been truncated
    meanwhile."""

    async def scenario() -> None:
        waiting = leader.produce(b"a")
        await settle()
        leader.partition.make_follower(
            leader.image(FIRST, leader=FIRST, leader_epoch=6, partition_epoch=11)
        )
        if comes_back:
            leader.partition.make_leader(leader.image(ME, leader_epoch=7, partition_epoch=12))
        answer = await waiting
        assert answer.error_code == ErrorCode.not_leader_or_follower
        if not comes_back:
            assert answer.current_leader == (FIRST, 6)

    leader.run(scenario)


def test_acks_all_survives_a_new_epoch_of_the_same_leader(leader: Leader) -> None:
    async def scenario() -> None:
        waiting = leader.produce(b"a")
        leader.partition.make_leader(
            leader.image(ME, FIRST, replicas=(ME, FIRST), leader_epoch=6, partition_epoch=11)
        )
        await settle()
        assert not waiting.done()
        leader.fetch_now(1, replica=FIRST)
        assert (await waiting).error_code == ErrorCode.none

    leader.run(scenario)


def test_skipped_leader_epoch_makes_the_followers_offsets_unknown(leader: Leader) -> None:
    """Another broker may have led in epoch 6, and FIRST may have truncated its log for it."""

    async def scenario() -> None:
        waiting = leader.produce(b"a", b"b")
        leader.fetch_now(2, replica=FIRST)
        leader.fetch_now(0, replica=SECOND)
        image = leader.image(ME, FIRST, leader_epoch=7, partition_epoch=12)
        assert not leader.partition.make_leader(image)
        await settle()
        assert leader.partition.log.high_watermark == 0
        assert not waiting.done()
        leader.fetch_now(2, replica=FIRST, current_leader_epoch=7)
        assert leader.partition.log.high_watermark == 2
        assert (await waiting).error_code == ErrorCode.none

    leader.run(scenario)


def test_shrunk_isr_lets_the_high_watermark_rise(leader: Leader) -> None:
    async def scenario() -> None:
        waiting = leader.produce(b"a")
        leader.fetch_now(1, replica=FIRST)
        leader.parts.clock.advance(30_001)
        leader.fetch_now(1, replica=FIRST)
        leader.partition.shrink_isr()
        await settle()
        assert not waiting.done()
        assert leader.controller.accept().isr == (ME, FIRST)
        assert (await waiting).error_code == ErrorCode.none
        assert leader.partition.isr == (ME, FIRST)
        assert leader.partition.partition_epoch == 11

    leader.run(scenario)


def test_periodic_task_finds_late_followers(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        leader.parts.clock.advance(30_001)
        task = isr_shrinking(leader.parts.replica_manager, 2, SystemClock())
        task.start()
        try:
            assert await asyncio.to_thread(leader.controller.was_asked.wait, 25)
        finally:
            task.stop()
        assert leader.controller.accept().isr == (ME,)
        assert leader.partition.log.high_watermark == 1

    leader.run(scenario)


def test_follower_that_caught_up_joins(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        leader.fetch_now(0, replica=FIRST)
        assert leader.controller.asked == []
        leader.fetch_now(1, replica=FIRST)
        assert leader.controller.accept().isr == (ME, FIRST)
        assert leader.partition.isr == (ME, FIRST)

    leader.run(scenario, ME)


def test_change_is_asked_for_again_after_an_unexpected_error(leader: Leader) -> None:
    async def scenario() -> None:
        leader.fetch_now(0, replica=FIRST)
        leader.controller.refuse(ErrorCode.unknown_server_error)
        assert leader.controller.accept().isr == (ME, FIRST)
        leader.fetch_now(0, replica=SECOND)
        leader.controller.refuse(ErrorCode.ineligible_replica)
        assert leader.controller.asked == []
        leader.fetch_now(0, replica=SECOND)
        assert leader.controller.accept().isr == (ME, FIRST, SECOND)

    leader.run(scenario, ME)


# ---- fetches of followers


def test_new_epoch_begins_at_the_log_end_before_any_append(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        leader.partition.make_leader(leader.image(ME, leader_epoch=8, partition_epoch=11))
        epochs = [tuple(entry) for entry in leader.partition.log.leader_epochs.entries]
        assert epochs == [(5, 0), (8, 1)]

    leader.run(scenario)


def test_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark(
    leader: Leader,
) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        read = leader.fetch_now(0, replica=FIRST)
        assert size_of(read) > 0
        assert read.high_watermark == 0
        for isolation in (0, 1):
            assert size_of(leader.fetch_now(0, isolation_level=isolation)) == 0
        leader.fetch_now(1, replica=FIRST)
        leader.fetch_now(1, replica=SECOND)
        for isolation in (0, 1):
            assert size_of(leader.fetch_now(0, isolation_level=isolation)) > 0

    leader.run(scenario)


def test_waiting_follower_is_woken_by_an_append_and_a_consumer_by_the_high_watermark(
    leader: Leader,
) -> None:
    async def scenario() -> None:
        consumer = leader.fetch_waiting(0)
        follower = leader.fetch_waiting(0, replica=FIRST)
        leader.produce(b"a", acks=1)
        assert size_of(await follower) > 0
        leader.fetch_now(1, replica=FIRST)
        await settle()
        assert not consumer.done()
        second = leader.fetch_waiting(1, replica=SECOND)
        assert size_of(await consumer) > 0
        await settle()
        # A new high watermark alone does not end a follower's wait. It comes with the next records.
        assert not second.done()
        second.cancel()

    leader.run(scenario)


def test_only_the_first_pass_tells_what_a_follower_has(leader: Leader) -> None:
    """A later pass of a waiting fetch must not update the follower's state: the follower may have
    fetched on another connection since."""

    async def scenario() -> None:
        old = leader.fetch_waiting(0, replica=FIRST)
        leader.partition.update_follower(
            FIRST,
            leader_epoch=5,
            fetch_offset=1,
            log_start_offset=0,
            broker_epoch=102,
            leader_end_offset=1,
            now_ms=leader.parts.clock.now_ms(),
        )
        leader.produce(b"a", acks=1)
        await old
        assert leader.partition.follower_states()[FIRST].log_end_offset == 1

    leader.run(scenario)


def test_offset_of_a_fetch_in_an_earlier_leader_epoch_is_not_noted(leader: Leader) -> None:
    """The offset is of an earlier term. Another broker led meanwhile, so it may be of another
    history."""

    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        leader.partition.make_follower(
            leader.image(FIRST, leader=FIRST, leader_epoch=6, partition_epoch=11)
        )
        leader.partition.make_leader(leader.image(ME, leader_epoch=7, partition_epoch=12))
        with pytest.raises(FencedLeaderEpochError, match="requested=5 current=7"):
            leader.partition.update_follower(
                FIRST,
                leader_epoch=5,
                fetch_offset=1,
                log_start_offset=0,
                broker_epoch=ANY_BROKER_EPOCH,
                leader_end_offset=1,
                now_ms=leader.parts.clock.now_ms(),
            )
        assert leader.partition.follower_states()[FIRST].log_end_offset == -1

    leader.run(scenario)


def test_wait_ends_with_a_new_leader_epoch(leader: Leader) -> None:
    async def scenario() -> None:
        waiting = leader.fetch_waiting(0, replica=FIRST, current_leader_epoch=5)
        leader.partition.make_follower(
            leader.image(FIRST, leader=FIRST, leader_epoch=6, partition_epoch=11)
        )
        answer = await waiting
        assert answer.error_code == ErrorCode.fenced_leader_epoch
        assert answer.current_leader == (FIRST, 6)

    leader.run(scenario)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"current_leader_epoch": 4}, ErrorCode.fenced_leader_epoch),
        ({"current_leader_epoch": 6}, ErrorCode.unknown_leader_epoch),
        ({"replica": 9, "current_leader_epoch": 5}, ErrorCode.unknown_leader_epoch),
        ({"replica": 9}, ErrorCode.not_leader_or_follower),
        ({"epoch": 101}, ErrorCode.not_leader_or_follower),
        ({"epoch": 103}, ErrorCode.none),
        ({"epoch": -1}, ErrorCode.none),
        ({"offset": 3}, ErrorCode.offset_out_of_range),
        ({"offset": -1}, ErrorCode.offset_out_of_range),
        ({"last_fetched_epoch": 6}, ErrorCode.offset_out_of_range),
        # Fencing by leader epoch comes first, and the offset is checked before the broker epoch.
        ({"replica": 9, "current_leader_epoch": 4}, ErrorCode.fenced_leader_epoch),
        ({"offset": 3, "epoch": 101}, ErrorCode.offset_out_of_range),
    ],
)
def test_checks_of_a_followers_fetch(
    leader: Leader, asked: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario() -> None:
        leader.produce(b"a", b"b", acks=1)
        wanted = {"offset": 0, "replica": FIRST, **asked}
        assert leader.fetch_now(**wanted).error_code == error
        has_state = leader.partition.follower_states()[FIRST].log_end_offset >= 0
        assert has_state is (error == ErrorCode.none)

    leader.run(scenario)


def test_diverging_follower_gets_no_records_and_tells_nothing(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", b"b", acks=1)
        leader.partition.make_leader(leader.image(ME, leader_epoch=8, partition_epoch=11))
        leader.produce(b"c", acks=1)
        answer = leader.fetch_now(4, replica=FIRST, last_fetched_epoch=6)
        assert answer.diverging_epoch == (5, 2)
        assert size_of(answer) == 0
        assert leader.partition.follower_states()[FIRST].log_end_offset == -1

    leader.run(scenario)


def test_partition_of_other_brokers_alone_names_its_leader(leader: Leader) -> None:
    async def scenario() -> None:
        image = leader.image(FIRST, replicas=(FIRST,), leader=FIRST, partition=1)
        topic = TopicImage(
            "elsewhere", uuid.UUID(int=77), (leader.image(FIRST, replicas=(FIRST,)), image)
        )
        leader.topics["elsewhere"] = topic
        find = leader.parts.replica_manager.find_partition
        with pytest.raises(NotLeaderOrFollowerError):
            find("elsewhere", None, 1)
        with pytest.raises(UnknownTopicOrPartitionError):
            find("elsewhere", None, 2)

    leader.run(scenario)


# ---- the quota of replication


def test_throttled_follower_out_of_sync_gets_no_records_over_the_quota(leader: Leader) -> None:
    async def scenario() -> None:
        parts = leader.parts
        metadata = ClusterMetadata(
            replace(parts.config, leader_replication_throttled_rate=1),
            MetadataImage(
                configs={
                    ConfigResource(TOPIC_RESOURCE, "t"): {
                        "leader.replication.throttled.replicas": "0:1"
                    }
                }
            ),
        )
        parts.services.leader_quota = leader_quota(metadata, parts.clock)
        leader.produce(b"a", acks=1)
        # Within the quota, which counts records after they are sent.
        assert size_of(leader.fetch_now(0, replica=SECOND)) > 0
        held_back = leader.fetch_now(0, replica=SECOND)
        assert (size_of(held_back), held_back.error_code) == (0, ErrorCode.none)
        # In-sync replicas are never throttled. The state of a throttled follower is still updated.
        assert size_of(leader.fetch_now(0, replica=FIRST)) > 0
        leader.fetch_now(1, replica=SECOND)
        assert leader.partition.follower_states()[SECOND].log_end_offset == 1
        # Its wait does not end when records come that the quota withholds.
        waiting = leader.fetch_waiting(1, replica=SECOND)
        leader.produce(b"b", acks=1)
        await settle()
        assert not waiting.done()
        waiting.cancel()
        parts.clock.advance(60_000)
        assert size_of(leader.fetch_now(1, replica=SECOND)) > 0

    leader.run(scenario, ME, FIRST)


# ---- followed partitions


def follow(leader: Leader, records: int = 2) -> None:
    leader.produce(*[b"x"] * records, acks=1)
    leader.partition.make_follower(
        leader.image(FIRST, leader=FIRST, leader_epoch=6, partition_epoch=11)
    )


def test_follower_refuses_appends_and_names_the_leader(leader: Leader) -> None:
    async def scenario() -> None:
        follow(leader)
        for acks in (1, -1):
            answer = leader.produce(b"a", acks=acks)
            assert answer.error_code == ErrorCode.not_leader_or_follower
            assert answer.current_leader == (FIRST, 6)

    leader.run(scenario)


def test_follower_serves_consumers_up_to_its_high_watermark(leader: Leader) -> None:
    """KIP-392."""

    async def scenario() -> None:
        follow(leader)
        log = leader.partition.log
        assert size_of(leader.fetch_now(0)) == 0
        waiting = leader.fetch_waiting(1)
        log.update_high_watermark(2)
        leader.partition.note_replicated(0)
        assert size_of(await waiting) > 0
        assert leader.fetch_now(3).error_code == ErrorCode.offset_out_of_range
        refused = leader.fetch_now(0, version=10)
        assert refused.error_code == ErrorCode.not_leader_or_follower
        refused = leader.fetch_now(0, replica=SECOND)
        assert refused.error_code == ErrorCode.not_leader_or_follower

    leader.run(scenario)


def test_older_partition_epochs_change_nothing(leader: Leader) -> None:
    """testIgnoreLeaderPartitionStateChangeWithOlderPartitionEpoch, and the same for a follower."""

    async def scenario() -> None:
        partition = leader.partition
        old = leader.image(ME, partition_epoch=9, leader_epoch=9, leader=FIRST)
        assert not partition.make_follower(old)
        assert partition.is_leader
        assert not partition.make_leader(leader.image(ME, partition_epoch=9))
        assert partition.isr == (ME, FIRST, SECOND)

    leader.run(scenario)


# ---- other requests


async def list_offset(
    leader: Leader, timestamp: int, *, replica: int = -1, version: int = 11
) -> Any:
    asked = v11.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = v11.ListOffsetsRequest(
        replica_id=replica,
        isolation_level=0,
        topics=(v11.ListOffsetsTopic(name="t", partitions=(asked,)),),
        timeout=datetime.timedelta(),
    )
    response = list_offsets.handle(leader.parts.context(2, version), request)
    if inspect.isawaitable(response):
        response = await response
    (found,) = response.topics[0].partitions
    return found.error_code or found.offset


def test_list_offsets_of_consumers_and_replicas(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        assert await list_offset(leader, -1) == 0
        assert await list_offset(leader, -1, replica=FIRST) == 1
        assert await list_offset(leader, -1, replica=-2) == 1
        follow(leader)
        refused = ErrorCode.not_leader_or_follower
        assert await list_offset(leader, -1) == refused
        assert await list_offset(leader, -1, replica=FIRST) == refused
        assert await list_offset(leader, -1, replica=-2) == 3

    leader.run(scenario)


def test_new_leader_tells_no_end_that_moves_back(leader: Leader) -> None:
    """KIP-207"""

    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        leader.partition.make_leader(leader.image(ME, FIRST, leader_epoch=6, partition_epoch=11))
        missing = ErrorCode.offset_not_available
        assert await list_offset(leader, -1) == missing
        assert await list_offset(leader, 0) == missing
        assert await list_offset(leader, -3) == missing
        assert await list_offset(leader, -2) == 0
        assert await list_offset(leader, -1, replica=FIRST) == 1
        leader.fetch_now(1, replica=FIRST)
        assert await list_offset(leader, -1) == 1

    leader.run(scenario)


def test_deleted_records_wait_for_the_followers_that_live(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", b"b", acks=1)
        for follower in (FIRST, SECOND):
            leader.fetch_now(2, replica=follower, log_start_offset=0)
        request = v2.DeleteRecordsRequest(
            topics=(
                v2.DeleteRecordsTopic(
                    name="t",
                    partitions=(v2.DeleteRecordsPartition(partition_index=0, offset=1),),
                ),
            ),
            timeout=datetime.timedelta(seconds=600),
        )
        waiting = asyncio.ensure_future(delete_records.handle(leader.parts.context(21, 2), request))
        await settle()
        leader.brokers[SECOND] = leader.brokers[SECOND]._replace(fenced=True)
        await settle()
        assert not waiting.done()
        leader.fetch_now(2, replica=FIRST, log_start_offset=1)
        (answer,) = (await waiting).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 1)

    leader.run(scenario)


# ---- nearest replicas


def test_consumer_is_sent_to_the_replica_in_its_rack(leader: Leader) -> None:
    async def scenario() -> None:
        services = leader.parts.services
        services.config = replace(
            services.config,
            replication=ReplicationConfig(replica_selector_class=RACK_AWARE_SELECTOR),
        )
        leader.produce(b"a", b"b", acks=1)
        leader.fetch_now(2, replica=FIRST, log_start_offset=1)
        leader.fetch_now(2, replica=SECOND, log_start_offset=0)

        def preferred(rack: str, offset: int = 1, version: int = 18) -> int:
            answer = leader.fetch_now(offset, rack_id=rack, version=version)
            sent = answer.preferred_read_replica
            assert (size_of(answer) == 0) is (sent != -1 or offset == 2)
            return sent

        assert preferred("rack-2") == FIRST
        # FIRST lacks the records from 0 on. The leader serves its own rack and racks without a
        # broker.
        assert preferred("rack-2", offset=0) == -1
        assert preferred("rack-1") == preferred("rack-9") == preferred("") == -1
        leader.brokers[SECOND] = leader.brokers[SECOND]._replace(rack="rack-2")
        leader.parts.clock.advance(5)
        leader.fetch_now(2, replica=SECOND, log_start_offset=0)
        assert preferred("rack-2") == SECOND
        leader.partition.make_leader(leader.image(ME, FIRST, partition_epoch=11))
        assert preferred("rack-2") == FIRST
        leader.brokers[FIRST] = leader.brokers[FIRST]._replace(endpoints=())
        assert preferred("rack-2") == -1

    leader.run(scenario)


# ---- records of coordinators


def test_commit_of_records_can_be_awaited(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        waiting = leader.partition.when_committed(1, leader.partition.term)
        assert waiting is not None
        leader.fetch_now(1, replica=FIRST)
        await settle()
        assert not waiting.done()
        # The control thread changes roles in the product too.
        await asyncio.to_thread(
            leader.partition.make_leader, leader.image(ME, FIRST, partition_epoch=11)
        )
        await waiting
        assert leader.partition.when_committed(1, leader.partition.term) is None

    leader.run(scenario)


def test_commit_of_records_of_an_earlier_term_is_an_error(leader: Leader) -> None:
    """Another broker has led since the append, so other records may have these offsets."""

    async def scenario() -> None:
        term = leader.partition.term
        leader.produce(b"a", acks=1)
        follow(leader)
        leader.partition.make_leader(
            leader.image(ME, leader_epoch=7, partition_epoch=12, replicas=(ME,))
        )
        assert leader.partition.log.high_watermark >= 1
        waiting = leader.partition.when_committed(1, term)
        assert waiting is not None
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting

    leader.run(scenario)


def test_commit_that_another_leader_decides_is_an_error(leader: Leader) -> None:
    async def scenario() -> None:
        leader.produce(b"a", acks=1)
        waiting = leader.partition.when_committed(1, leader.partition.term)
        assert waiting is not None
        follow(leader)
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting

    leader.run(scenario)


# ---- leader epochs


def test_new_epoch_is_recorded_while_no_other_thread_changes_the_epochs(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raised log start replaces the epochs as well. Of two replacements at once one is lost."""

    async def scenario() -> None:
        log = leader.partition.log
        assign = log.leader_epochs.assign
        could_change: list[bool] = []

        def try_to_change() -> None:
            could_change.append(log._lock.acquire(blocking=False))
            if could_change[-1]:
                log._lock.release()

        def assign_beside_another_thread(epoch: int, start_offset: int) -> None:
            other = threading.Thread(target=try_to_change)
            other.start()
            other.join()
            assign(epoch, start_offset)

        monkeypatch.setattr(log.leader_epochs, "assign", assign_beside_another_thread)
        leader.partition.make_leader(leader.image(ME, leader_epoch=6, partition_epoch=11))
        assert log.leader_epochs.latest == (6, log.log_end_offset)
        assert could_change == [False]

    leader.run(scenario)


# ---- metrics


def test_metrics_tell_what_is_free_on_disk(leader: Leader) -> None:
    async def scenario() -> None:
        manager = leader.parts.replica_manager
        metrics = ReplicaMetrics(manager, leader.parts.cluster.isr_counts)

        def free() -> dict[str, tuple[dict[str, str], float]]:
            return {
                sample.name: (sample.labels, sample.value)
                for family in metrics.collect()
                for sample in family.samples
                if "log_directory" in sample.name
            }

        (log_dir,) = manager.log_dirs()
        sizes = free()
        labels, usable = sizes["isotherm_log_directory_usable_bytes"]
        assert labels == {"directory": str(log_dir.path)}
        assert 0 < usable <= sizes["isotherm_log_directory_volume_bytes"][1]
        log_dir.fail(OSError("broken"), "read")
        assert free() == {}

    leader.run(scenario)


def test_metrics_count_partitions_by_their_replicas(leader: Leader) -> None:
    async def scenario() -> None:
        metrics = ReplicaMetrics(leader.parts.replica_manager, leader.parts.cluster.isr_counts)

        def value(name: str) -> float:
            return {
                sample.name: sample.value
                for family in metrics.collect()
                for sample in family.samples
            }[f"kafka_server_replicamanager_{name}"]

        assert value("produceridcount") == 0
        # t-1 has one replica.
        assert (value("partitioncount"), value("leadercount")) == (2, 2)
        assert (value("underreplicatedpartitions"), value("underminisrpartitioncount")) == (0, 0)
        leader.partition.make_leader(
            leader.image(ME, FIRST, adding_replicas=(SECOND,), partition_epoch=11)
        )
        assert (value("underreplicatedpartitions"), value("atminisrpartitioncount")) == (1, 2)
        assert value("reassigningpartitions") == 1
        leader.partition.make_leader(leader.image(ME, partition_epoch=12))
        assert value("underminisrpartitioncount") == 1
        leader.fetch_now(0, replica=FIRST)
        leader.controller.accept()
        assert (value("isrexpands_total"), value("isrshrinks_total")) == (1, 0)
        leader.partition.make_follower(
            leader.image(FIRST, leader=FIRST, leader_epoch=6, partition_epoch=20)
        )
        assert (value("leadercount"), value("underreplicatedpartitions")) == (1, 0)

    leader.run(scenario, min_isr=2)
