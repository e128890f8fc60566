"""A fetch session gives its client all that fetches without a session would, and nothing twice.

The model is KIP-227's rule over such fetches: an incremental answer has the partitions with
records, with an error, or with a high watermark or log start offset that the client does not have.
Between the fetches anything happens that can happen to a partition. A session does not read
partitions in which nothing has changed (decision 135), so any kind of change that it does not
notice fails here.
"""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import fetch
from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord
from isotherm.broker.partitions.fetch_sessions import FetchSession
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.config.topic import TopicConfig
from isotherm.protocol.fetch import (
    NO_REPLICA,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from tests.support.led_topic import BROKER_ID, delete_topic, lead_topic, led

VERSION = 12
TOPIC = "t"
PARTITIONS = 4
FOLLOWER = 2
STEPS = 150
SEEDS = range(12)
PRODUCER_ID = 9
# Longer than any test may take: a fetch that no change wakes fails its test.
WAIT_MS = 600_000


def request(
    session: tuple[int, int],
    asked: list[FetchPartition],
    *,
    isolation_level: int = 0,
    max_bytes: int = 1 << 30,
    forgotten: tuple[int, ...] = (),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(TOPIC, None, asked)] if asked else [],
        forgotten_topics=[ForgottenTopic(TOPIC, None, list(forgotten))] if forgotten else [],
        rack_id="",
    )


def partitions_of(response: FetchResponse) -> list[FetchPartitionResponse]:
    assert response.error_code == ErrorCode.none
    found = [partition for topic in response.topics for partition in topic.partitions]
    return [each._replace(records=[bytes(part) for part in each.records]) for each in found]


class Acls:
    """The metadata of an authorizer. It either denies the topic or has no ACL."""

    def __init__(self) -> None:
        self.image = SimpleNamespace(acls={})

    def toggle(self) -> None:
        denial = AccessControlEntryRecord(
            id=uuid.UUID(int=5),
            resource_type=ResourceType.TOPIC,
            resource_name=TOPIC,
            pattern_type=PatternType.LITERAL,
            principal="User:ANONYMOUS",
            host="*",
            operation=Operation.READ,
            permission_type=Permission.DENY,
        )
        self.image = SimpleNamespace(acls={} if self.image.acls else {denial.id: denial})


class Client:
    """The client of one session, and the high watermark and log start offset that it has of each
    partition."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.id, self.epoch = 0, 0
        # In the order of the session.
        self.asked = {index: FetchPartition(index, 0, 1 << 20) for index in range(PARTITIONS)}
        self.last_sent: dict[int, tuple[int, int]] = {}
        self.isolation_level = 0

    def begin(self) -> None:
        wanted = request((0, 0), list(self.asked.values()), isolation_level=self.isolation_level)
        response = self.run.fetch(wanted)
        self.id, self.epoch = response.session_id, 1
        assert self.id
        for partition in partitions_of(response):
            self.note(partition)

    def note(self, each: FetchPartitionResponse) -> None:
        if each.error_code:
            self.last_sent.pop(each.partition, None)
        else:
            self.last_sent[each.partition] = each.high_watermark, each.log_start_offset

    def go_on(
        self, changed: dict[int, int], forgotten: tuple[int, ...] = (), max_bytes: int = 1 << 30
    ) -> None:
        """Fetch with and without the session and compare. `changed` are new offsets by
        partition."""
        for index, offset in changed.items():
            self.asked[index] = FetchPartition(index, offset, 1 << 20)
            self.last_sent.setdefault(index, (-1, -1))
        for index in forgotten:
            self.asked.pop(index)
            self.last_sent.pop(index, None)
        terms = {"isolation_level": self.isolation_level, "max_bytes": max_bytes}
        expected = []
        for partition in partitions_of(
            self.run.fetch(request((0, -1), list(self.asked.values()), **terms))
        ):
            last_sent = self.last_sent.get(partition.partition)
            is_news = last_sent != (partition.high_watermark, partition.log_start_offset)
            if partition.error_code or partition.records or is_news:
                expected.append(partition)
            assert partition.preferred_read_replica == NO_REPLICA
            self.note(partition)
            if partition.records:
                self.asked[partition.partition] = self.asked.pop(partition.partition)
        sent = [FetchPartition(index, offset, 1 << 20) for index, offset in changed.items()]
        answer = self.run.fetch(request((self.id, self.epoch), sent, forgotten=forgotten, **terms))
        self.epoch += 1
        assert partitions_of(answer) == expected


class Run:
    """Random changes of the partitions between fetches."""

    def __init__(self, parts: Any, seed: int) -> None:
        self.parts = parts
        self.rng = random.Random(seed)
        self.topic_ids = 100
        self.epoch = 10
        self.acls = Acls()
        parts.services.authorizer = Authorizer(
            self.acls, super_users=frozenset(), allow_without_acl=True
        )
        delete_topic(parts.replica_manager, TOPIC)
        self.create()

    def fetch(self, wanted: FetchRequest) -> FetchResponse:
        answer = fetch.handle(self.parts.context(1, VERSION), wanted)
        assert isinstance(answer, FetchResponse)
        return answer

    def create(self) -> None:
        self.topic_ids += 1
        config = TopicConfig(internal_segment_bytes=600, retention_ms=-1)
        lead_topic(
            self.parts.replica_manager,
            TOPIC,
            uuid.UUID(int=self.topic_ids),
            dict.fromkeys(range(PARTITIONS), 0),
            config,
        )
        for index in range(PARTITIONS):
            if self.rng.random() < 0.5:
                self.lead(self.parts.replica_manager.find_partition(TOPIC, None, index))

    def partition(self) -> Partition | None:
        hosted = self.parts.replica_manager.topic(TOPIC)
        return None if hosted is None else self.rng.choice(list(hosted.partitions.values()))

    def step(self) -> None:
        partition = self.partition()
        if partition is None:
            self.create()
            return
        acts = [self.append] * 4 + [self.transact] * 3 + [self.replicate] * 4 + [self.delete] * 2
        acts += [self.retain, self.turn, self.turn, self.truncate, self.truncate, self.drop_topic]
        self.rng.choice(acts)(partition)
        if self.rng.random() < 0.03:
            self.acls.toggle()

    def append(self, partition: Partition) -> None:
        batch = self.batch(is_transactional=False)
        if partition.is_leader:
            partition.append(batch, required_acks=1, now_ms=self.now_ms)
        else:
            self.append_as_follower(partition, batch)

    def append_as_follower(self, partition: Partition, batch: bytearray) -> None:
        log = partition.log
        batch[:8] = log.log_end_offset.to_bytes(8, "big")
        batch[12:16] = partition.leader_epoch.to_bytes(4, "big")
        info = log.append_as_follower(memoryview(batch), partition.leader_epoch)
        # As ReplicaFetcher does: the leader's high watermark first, then the waiting requests.
        log.update_high_watermark(self.rng.randint(log.high_watermark, log.log_end_offset))
        partition.note_replicated(info.size)

    def transact(self, partition: Partition) -> None:
        if not partition.is_leader:
            return
        state = partition.log.producers.producer(PRODUCER_ID)
        if state is not None and state.transaction_first_offset is not None:
            batch = build_end_transaction_marker(
                self.rng.choice((ControlRecordType.COMMIT, ControlRecordType.ABORT)),
                producer_id=PRODUCER_ID,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=self.now_ms,
            )
            origin = AppendOrigin.COORDINATOR
        else:
            sequence = 0 if state is None else state.last_sequence + 1
            batch, origin = (
                self.batch(is_transactional=True, sequence=sequence),
                AppendOrigin.CLIENT,
            )
        partition.append(batch, required_acks=1, now_ms=self.now_ms, origin=origin)

    def replicate(self, partition: Partition) -> None:
        """The follower fetches, and the high watermark may rise."""
        if not partition.is_leader or partition.is_alone:
            return
        log = partition.log
        partition.update_follower(
            FOLLOWER,
            leader_epoch=partition.leader_epoch,
            fetch_offset=self.rng.randint(log.high_watermark, log.log_end_offset),
            log_start_offset=0,
            broker_epoch=-1,
            leader_end_offset=log.log_end_offset,
            now_ms=self.now_ms,
        )

    def delete(self, partition: Partition) -> None:
        """Delete records up to a random offset, as DeleteRecords does."""
        log = partition.log
        log.maybe_increment_log_start_offset(
            self.rng.randint(log.log_start_offset, log.high_watermark)
        )

    def retain(self, partition: Partition) -> None:
        """Apply retention by size, which keeps the newest segments."""
        partition.log.update_config(TopicConfig(internal_segment_bytes=600, retention_bytes=900))
        partition.log.delete_old_segments(self.now_ms)

    def turn(self, partition: Partition) -> None:
        """Move the leadership: to another broker, or back to this one."""
        if partition.is_leader:
            self.epoch += 1
            partition.make_follower(
                led(
                    partition.topic_partition.partition,
                    self.epoch,
                    replicas=(BROKER_ID, FOLLOWER),
                    isr=(BROKER_ID, FOLLOWER),
                    leader=FOLLOWER,
                )
            )
        else:
            self.lead(partition)

    def truncate(self, partition: Partition) -> None:
        """Truncate a follower's log, as after a divergence from its leader's."""
        log = partition.log
        if not partition.is_leader:
            offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
            self.parts.log_manager.truncate_log(log, offset)

    def lead(self, partition: Partition) -> None:
        self.epoch += 1
        replicas = (BROKER_ID, FOLLOWER) if self.rng.random() < 0.7 else (BROKER_ID,)
        index = partition.topic_partition.partition
        partition.make_leader(led(index, self.epoch, replicas=replicas, isr=replicas))

    def drop_topic(self, partition: Partition) -> None:
        if self.rng.random() < 0.2:
            delete_topic(self.parts.replica_manager, TOPIC)

    def batch(self, *, is_transactional: bool, sequence: int = 0) -> bytearray:
        record = (self.now_ms, None, bytes(self.rng.randint(1, 200)), ())
        if not is_transactional:
            return build_batch([record])
        return build_batch(
            [record],
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )

    @property
    def now_ms(self) -> int:
        now_ms: int = self.parts.clock.now_ms()
        return now_ms


@pytest.mark.parametrize("seed", SEEDS)
def test_session_tells_what_a_fetch_without_one_would(parts: Any, seed: int) -> None:
    async def scenario() -> None:
        run = Run(parts, seed)
        client, rng = Client(run), run.rng
        client.begin()
        for _ in range(STEPS):
            for _ in range(rng.choice((0, 1, 1, 2, 5))):
                run.step()
            changed, forgotten = {}, ()
            for index in range(PARTITIONS):
                if rng.random() < 0.3:
                    changed[index] = client_offset(run, index)
            if rng.random() < 0.05:
                forgotten = tuple(index for index in client.asked if index not in changed)[:1]
            if len(client.asked) - len(forgotten) + len(changed) < 2:
                forgotten = ()
            if rng.random() < 0.05:
                client.isolation_level = 1 - client.isolation_level
            client.go_on(changed, forgotten, rng.choice((1 << 30, 1 << 30, 300)))

    parts.run(scenario)


def client_offset(run: Run, index: int) -> int:
    """A fetch offset: mostly the end of what can be read, where a consumer waits."""
    hosted = run.parts.replica_manager.topic(TOPIC)
    if hosted is None:
        return 0
    log = hosted.partitions[index].log
    end = run.rng.choice((log.high_watermark, log.last_stable_offset, log.log_end_offset))
    return end if run.rng.random() < 0.8 else run.rng.randint(0, log.log_end_offset + 1)


async def waiting(run: Run, client: Client, **terms: int) -> asyncio.Future[Any]:
    """A pending incremental fetch for which there is no news yet."""
    wanted = request((client.id, client.epoch), [], max_wait_ms=WAIT_MS, **terms)
    client.epoch += 1
    answer = fetch.handle(run.parts.context(1, VERSION), wanted)
    assert isinstance(answer, LaterResponse)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not answer.future.done()
    return asyncio.ensure_future(_answer_of(answer))


async def _answer_of(answer: LaterResponse) -> Any:
    await answer.future
    return answer.respond()


def at_rest(parts: Any) -> tuple[Run, Client]:
    """A run whose client is up to date."""
    run = Run(parts, 0)
    for index in range(PARTITIONS):
        run.epoch += 1
        parts.replica_manager.find_partition(TOPIC, None, index).make_leader(led(index, run.epoch))
    client = Client(run)
    client.begin()
    for _ in range(2):
        client.go_on({})
    return run, client


def test_append_ends_the_wait_of_a_session(parts: Any) -> None:
    async def scenario() -> None:
        run, client = at_rest(parts)
        future = await waiting(run, client)
        run.append(parts.replica_manager.find_partition(TOPIC, None, 2))
        (last_sent,) = partitions_of(await future)
        assert (last_sent.partition, last_sent.high_watermark, len(last_sent.records)) == (2, 1, 1)

    parts.run(scenario)


def test_session_waits_for_min_bytes_of_all_its_partitions(parts: Any) -> None:
    async def scenario() -> None:
        run, client = at_rest(parts)
        size = len(build_batch([(run.now_ms, None, bytes(100), ())]))
        future = await waiting(run, client, min_bytes=2 * size)
        for index in (3, 1):
            assert not future.done()
            partition = parts.replica_manager.find_partition(TOPIC, None, index)
            batch = build_batch([(run.now_ms, None, bytes(100), ())])
            partition.append(batch, required_acks=1, now_ms=run.now_ms)
            for _ in range(5):
                await asyncio.sleep(0)
        last_sent = partitions_of(await future)
        assert [(each.partition, len(each.records)) for each in last_sent] == [(1, 1), (3, 1)]

    parts.run(scenario)


def test_deletion_of_a_topic_ends_the_wait_of_a_session(parts: Any) -> None:
    async def scenario() -> None:
        run, client = at_rest(parts)
        future = await waiting(run, client)
        delete_topic(parts.replica_manager, TOPIC)
        assert all(partition.error_code for partition in partitions_of(await future))

    parts.run(scenario)


def test_session_that_is_over_is_not_kept_by_its_partitions(parts: Any) -> None:
    async def scenario() -> None:
        run, client = at_rest(parts)
        assert _sessions(client.id)
        run.fetch(request((client.id, -1), [FetchPartition(0, 0, 100)]))
        assert not _sessions(client.id)

    parts.run(scenario)


def _sessions(session_id: int) -> list[FetchSession]:
    # A session that its partitions still referred to would survive the collection. Brokers of other
    # tests may have some.
    gc.collect()
    sessions = [each for each in gc.get_objects() if type(each) is FetchSession]
    return [session for session in sessions if session.session_id == session_id]
