"""The task of a follower's tiered partition: it follows the end of the remote tier.

A follower's local retention, too, deletes only records that are in the remote tier. Only the leader
copies and deletes there. Source: Kafka RemoteLogManager.RLMFollowerTask.
"""

from __future__ import annotations

from isotherm.log.partition_log import PartitionLog
from isotherm.remote.tasks.cancellation import Cancellation
from isotherm.remote.tasks.copy import find_copied_offset
from isotherm.remote.tasks.tier import AT_NEXT_INTERVAL, RemoteTierAccess
from isotherm.types import TimestampMs, TopicIdPartition


class FollowTask:
    def __init__(
        self, log: PartitionLog, partition: TopicIdPartition, tier: RemoteTierAccess
    ) -> None:
        self._log = log
        self._partition = partition
        self._tier = tier
        self._cancellation = Cancellation()
        self.due_ms: TimestampMs | None = AT_NEXT_INTERVAL
        """See `ScheduledTask`."""

    def cancel(self) -> None:
        """Report no further offset to the log. Callable from any thread."""
        self._cancellation.cancel()

    def release(self) -> None:
        """Call after the last run."""

    def run(self) -> None:
        """Report the copied offset to the log. Raises what a read of the metadata raises; a later
        run retries."""
        is_ready = self._tier.metadata.is_ready(self._partition)
        self.due_ms = None if is_ready and self._tier.tells_changes else AT_NEXT_INTERVAL
        if self._cancellation.is_set or not self._log.remote_log_enabled or not is_ready:
            return
        copied_offset = find_copied_offset(self._tier, self._partition, self._log)
        self._cancellation.report_copied(self._log, copied_offset)
