"""Restores leader epochs that are lost below a partition's first local segment, from the remote
tier.

Every copied segment has the leader-epoch-checkpoint of the log up to its end. The restorer takes
the checkpoint of the segment with the last offset before the local log, adds the epochs of the
local batches, and stores the result. Then the partition becomes leader or follower again. Nothing
is guessed: if no segment has that offset, or if the remote tier contradicts itself or the local
log, the partition stays offline. There is one exception: a follower whose log the controller will
not elect starts again with an empty log and fetches from its leader (docs/decisions/0120).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.partitions.replica_roles import ReplicaRoles
from isotherm.broker.threads.background import PeriodicTask
from isotherm.broker.tier.remote_metadata_upkeep import Upkeep
from isotherm.clock import Clock
from isotherm.errors import CorruptDataError, CorruptLogError, IsothermError
from isotherm.log.fs import FileSystem
from isotherm.log.offline_logs import RESTORE_HINT, LineageLostError, OfflineLog
from isotherm.remote.history.lineage import checkpoint_of_copy
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.leader_epoch_checkpoint import (
    EpochEntry,
    encode_leader_epoch_checkpoint,
)
from isotherm.segment.leader_epochs import first_out_of_order, joined
from isotherm.types import BrokerId, Offset, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S = 1.0


RunControl: TypeAlias = Callable[[Callable[[], Any]], "Future[Any]"]


class LineageRestorer:
    """Restores all partitions with lost epochs.

    Call `run` until `has_work` is False, from one thread at a time.
    """

    def __init__(
        self,
        cluster_metadata: ClusterMetadata,
        damaged_logs: Callable[[], Iterable[OfflineLog]],
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        roles: ReplicaRoles,
        *,
        broker_id: BrokerId,
        run_control: RunControl,
        fs: FileSystem,
    ) -> None:
        self._cluster_metadata = cluster_metadata
        self._damaged_logs = damaged_logs
        self._metadata = metadata
        self._storage = storage
        self._roles = roles
        self._broker_id = broker_id
        self._run_control = run_control
        self._fs = fs
        self._given_up: set[TopicIdPartition] = set()
        self._last_errors: dict[TopicIdPartition, str] = {}
        self._cancelled = threading.Event()

    @property
    def has_work(self) -> bool:
        return bool(self._lost())

    def cancel(self) -> None:
        """Stop before the next partition. Any thread may call it."""
        self._cancelled.set()

    def run(self) -> None:
        """Try each partition once.

        If its metadata or the bucket cannot be read, a later run tries again.
        """
        for topic_partition, lost in self._lost():
            topic = self._cluster_metadata.image.topics_by_name.get(topic_partition.topic)
            if self._cancelled.is_set():
                return
            if topic is None or topic_partition.partition >= len(topic.partitions):
                continue  # the topic was deleted, or created again with fewer partitions
            place = TopicIdPartition(topic.topic_id, *topic_partition)
            try:
                # Asked again in each run: the eligible replicas of the metadata may have changed.
                if place in self._given_up:
                    self._begin_anew(place)
                else:
                    self._try(place, topic.partitions[place.partition].leader, lost)
            except (IsothermError, OSError) as error:
                if self._last_errors.get(place) != str(error):
                    self._last_errors[place] = str(error)
                    logger.warning(
                        "leader epochs cannot be restored yet and are retried partition=%s: %s",
                        topic_partition,
                        error,
                    )

    def _lost(self) -> list[tuple[TopicPartition, LineageLostError]]:
        return [
            (log.topic_partition, log.reason)
            for log in self._damaged_logs()
            if isinstance(log.reason, LineageLostError)
        ]

    def _try(self, place: TopicIdPartition, leader: BrokerId, lost: LineageLostError) -> None:
        is_led = leader == self._broker_id
        self._metadata.on_partition_leadership_changes(
            [place] if is_led else [], [] if is_led else [place]
        )
        if not self._metadata.is_ready(place):
            return  # its metadata is still being loaded; the next run retries
        try:
            self._restore(place, lost)
        except CorruptDataError as error:
            self._given_up.add(place)
            if self._begin_anew(place):
                return
            logger.error(  # noqa: TRY400 - one line: the error names the place
                "partition stays offline, its leader epochs are lost partition=%s: %s hint='%s'",
                place.topic_partition,
                error,
                RESTORE_HINT,
            )

    def _begin_anew(self, place: TopicIdPartition) -> bool:
        # On the control thread, which applies the metadata: the replica is not fetched meanwhile,
        # and so enters no set from which the controller elects (docs/decisions/0120).
        has_begun: bool = self._run_control(lambda: self._roles.begin_anew(place)).result()
        return has_begun

    def _restore(self, place: TopicIdPartition, lost: LineageLostError) -> None:
        segment = segment_before(lost, self._metadata.list_remote_log_segments(place))
        checkpoint = self._storage.fetch_index(segment, IndexType.LEADER_EPOCH)
        lineage = joined_lineage(
            segment,
            checkpoint_of_copy(segment, bytes(checkpoint)),
            lost.local_start,
            lost.local_epochs,
        )
        self._run_control(lambda: self._store_and_serve(place, lost, lineage, segment)).result()

    def _store_and_serve(
        self,
        place: TopicIdPartition,
        lost: LineageLostError,
        lineage: Sequence[EpochEntry],
        segment: RemoteLogSegmentMetadata,
    ) -> None:
        """Control thread only: it also deletes topics, so the log cannot be replaced in between."""
        # While the tier was read, the topic may have been deleted, and one of the same name
        # created. The path then has the checkpoint of the new log.
        if not any(log.reason is lost for log in self._damaged_logs()):
            return
        # Stored before the partition is served, because a restart would otherwise find the epochs
        # lost again.
        self._fs.write_atomically(lost.path, encode_leader_epoch_checkpoint(lineage))
        logger.warning(
            "leader epochs were restored from the remote tier file=%s segment=%s epochs=%d",
            lost.path,
            segment.segment_id,
            len(lineage),
        )
        self._roles.bring_online(place)


def restorer_upkeep(restorer: LineageRestorer, clock: Clock) -> Upkeep:
    task = PeriodicTask(
        "isotherm-lineage-restorer",
        restorer.run,
        clock,
        initial_delay_s=0,
        interval_s=RETRY_INTERVAL_S,
    )
    return Upkeep(task, restorer.cancel)


def segment_before(
    lost: LineageLostError, segments: Sequence[RemoteLogSegmentMetadata]
) -> RemoteLogSegmentMetadata:
    """The finished segment with the last offset before the local log.

    Raises CorruptLogError if there is none, or if the segments with that offset belong to different
    lineages.
    """
    local_start = lost.local_start
    holding = [
        segment_metadata
        for segment_metadata in segments
        if segment_metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and segment_metadata.start_offset < local_start <= segment_metadata.end_offset_inclusive + 1
    ]
    if not holding:
        raise CorruptLogError(
            f"no segment of the remote tier holds the offset before the local log"
            f" offset={local_start - 1}",
            RESTORE_HINT,
        )
    histories = {
        tuple(entry for entry in segment.segment_leader_epochs.items() if entry[1] < local_start)[
            -1:
        ]
        for segment in holding
    }
    # Epochs that begin inside the local log must be the local ones. A follower's log may end before
    # the segment.
    beyond = {
        EpochEntry(*entry)
        for segment in holding
        for entry in segment.segment_leader_epochs.items()
        if local_start < entry[1] < lost.local_end
    }
    are_one = len({epochs[-1][0] for epochs in histories if epochs}) == 1
    if not are_one or not beyond <= set(lost.local_epochs):
        raise CorruptLogError(
            "segments of the remote tier disagree on the epoch before the local log"
            f" offset={local_start - 1}"
            f" segments={','.join(str(segment.segment_id) for segment in holding)}",
            RESTORE_HINT,
        )
    # All agree on the epoch there, and so on the history below it: one epoch has one leader.
    return holding[-1]


def joined_lineage(
    segment: RemoteLogSegmentMetadata,
    checkpoint: Sequence[EpochEntry],
    local_start: Offset,
    local_epochs: Sequence[EpochEntry],
) -> tuple[EpochEntry, ...]:
    """The epochs of a segment's checkpoint below the local log, followed by those of the local log.

    Raises CorruptLogError if they are not in ascending order.
    """
    remote = [entry for entry in checkpoint if entry.start_offset < local_start]
    lineage = joined(remote, local_epochs)
    if first_out_of_order(lineage) is not None:
        raise CorruptLogError(
            "leader epochs of a remote segment do not fit the local log"
            f" segment={segment.segment_id}",
            RESTORE_HINT,
        )
    return lineage
