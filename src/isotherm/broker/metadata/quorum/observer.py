"""The thread that follows the quorum's `__cluster_metadata-0`.

    fetch -> learn the leader from the answer -> append, truncate, or download a snapshot
          -> fold the committed records -> pass the image on, once the leader's high watermark is
          reached

Memory is bounded: besides the image only one fetch, one piece of a snapshot or one batch of it is
in memory at a time. Source: Kafka KafkaRaftClient, as an observer.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.image_records import image_records
from isotherm.broker.metadata.quorum.controller_discovery import (
    Learned,
    QuorumLeader,
    Verdict,
    learn,
    next_to_ask,
)
from isotherm.broker.metadata.quorum.followed_log import FollowedLog
from isotherm.broker.metadata.quorum.metadata_fetch import (
    Append,
    DownloadSnapshot,
    FetchOutcome,
    Observer,
    SnapshotId,
    Truncate,
    fetch_outcome,
    fetch_request,
    leader_hint,
    snapshot_piece,
    snapshot_request,
)
from isotherm.broker.metadata.quorum.metadata_loader import MetadataLoader
from isotherm.broker.metadata.quorum.snapshots import PartialSnapshot, write_snapshot
from isotherm.broker.threads.step_thread import StepThread
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import Clock
from isotherm.config.quorum import QuorumConfig
from isotherm.errors import IsothermError, PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.code_names import code_name
from isotherm.remote.outages import Outage

logger = logging.getLogger(__name__)

_ERRORS_OF_CHANGE = (
    ErrorCode.none,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.broker_not_available,
)


class MetadataObserver:
    """Call `start` once and `stop` last. `leader` may be read on any thread."""

    def __init__(
        self,
        observer: Observer,
        log: FollowedLog,
        *,
        config: QuorumConfig,
        bootstrap: Sequence[NodeAddress],
        voters: Mapping[int, NodeAddress],
        connect: Callable[[NodeAddress], NodeConnection],
        on_image: Callable[[MetadataImage], None],
        on_failure: Callable[[Exception], None],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`on_image` gets each image, on the observer's thread. The first has all records that the
        leader had committed. `on_failure` is called once, when the metadata cannot be followed any
        more because it is damaged, belongs to another cluster, or has records that are unknown
        here."""
        self._observer = observer
        self._log = log
        self._config = config
        self._bootstrap = bootstrap
        self._voters = voters
        self._connect = connect
        self._on_image = on_image
        self._on_failure = on_failure
        self._rng = rng
        self._loader = MetadataLoader()
        # An answer with a lower epoch than that of the log comes from a node that is behind.
        self._leader = QuorumLeader(log.position.last_epoch)
        self._leader_high_watermark = -1
        self._is_leader_silent = False
        self._outage = Outage(
            logger,
            clock,
            failing="a controller does not answer",
            working="a controller answers again",
        )
        self._last_error: ErrorCode | None = None
        self._connection: NodeConnection | None = None
        self._guard = threading.Lock()  # guards the connection, which `stop` closes
        self._is_loaded = False
        self._thread = StepThread("isotherm-metadata-observer", self._step, clock)

    @property
    def leader(self) -> QuorumLeader:
        return self._leader

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for the batch that it folds or the request in flight."""
        with self._guard:
            self._thread.begin_stop()
            if self._connection is not None:
                self._connection.close()
        self._thread.join()

    def _step(self) -> float | None:
        try:
            if not self._is_loaded:
                self._load_snapshot()
                self._is_loaded = True
            return self._exchange() / 1000
        # The boundary of the thread: `on_failure` gets any error that ends it.
        except Exception as error:
            if not self._thread.is_stopping:
                logger.exception("the cluster's metadata cannot be followed any more")
                self._on_failure(error)
            return None

    def _exchange(self) -> int:
        """Send one request and apply its answer; returns the milliseconds until the next."""
        address = (
            self._rng.choice(self._bootstrap)
            if self._is_leader_silent
            else next_to_ask(self._leader, self._bootstrap, self._rng)
        )
        request = fetch_request(
            self._observer,
            self._leader.epoch,
            self._log.position,
            self._config.controller_quorum_fetch_max_bytes,
        )
        try:
            response = self._connected_to(address).send(request)
        except (PeerDisconnectedError, PeerTimeoutError) as error:
            self._note_silence(address, error)
            return self._config.controller_quorum_retry_backoff_ms
        self._note_answer()
        hint = leader_hint(response)
        self._note_error(address, hint.error)
        learned = learn(self._leader, hint, self._voters)
        self._adopt(learned)
        if learned.verdict is Verdict.USE:
            self._act(fetch_outcome(response))
        if learned.verdict is Verdict.BACK_OFF:
            # There may be a new leader that this node does not know. Any controller can name it.
            self._is_leader_silent = True
            return self._config.controller_quorum_retry_backoff_ms
        return 0

    def _adopt(self, learned: Learned) -> None:
        self._is_leader_silent = learned.leader.address is None
        if learned.leader != self._leader:
            logger.info(
                "quorum has another leader epoch=%d leader_id=%s address=%s",
                *learned.leader,
            )
            self._leader = learned.leader

    def _act(self, outcome: FetchOutcome) -> None:
        if isinstance(outcome, Append):
            self._leader_high_watermark = outcome.high_watermark
            self._log.append(outcome.records, self._leader.epoch, outcome.high_watermark)
            self._fold()
        elif isinstance(outcome, Truncate):
            self._log.truncate(*outcome)
        else:
            self._download(outcome)

    # ---- folding

    def _load_snapshot(self) -> None:
        snapshot = self._log.snapshot
        if snapshot is not None:
            self._loader.load_snapshot(snapshot, self._log.snapshots.batches(snapshot))

    def _fold(self) -> None:
        while not self._thread.is_stopping:
            records = self._log.committed(self._loader.end_offset)
            if not records:
                break
            self._loader.replay(records)
        # As in MetadataLoader.stillNeedToCatchUp: with control records alone the active controller
        # has yet to write its bootstrap records.
        if 0 <= self._leader_high_watermark <= self._loader.end_offset and self._loader.has_records:
            image = self._loader.image()
            self._on_image(image)
            self._write_snapshot_if_due(image)

    def _write_snapshot_if_due(self, image: MetadataImage) -> None:
        limit = self._config.metadata_log_max_record_bytes_between_snapshots
        # Within a metadata transaction the image is older than the loader, and a snapshot must not
        # cut it.
        is_whole = image.end_offset == self._loader.end_offset
        if self._log.bytes_since_snapshot < limit or not is_whole:
            return
        snapshot_id = SnapshotId(image.end_offset, self._loader.last_epoch)
        with self._log.partial_snapshot(snapshot_id) as partial:
            write_snapshot(
                partial,
                snapshot_id.epoch,
                self._loader.kraft_version,
                image_records(image),
                self._loader.last_timestamp_ms,
            )
            partial.finish()
        # Only now: batches may be deleted below a durable snapshot alone.
        self._log.begin_after_own(snapshot_id)
        logger.info("metadata snapshot is written end_offset=%d epoch=%d", *snapshot_id)

    # ---- snapshots of the leader

    def _download(self, download: DownloadSnapshot) -> None:
        snapshot_id = download.snapshot_id
        logger.info("metadata snapshot is fetched end_offset=%d epoch=%d", *snapshot_id)
        with self._log.partial_snapshot(snapshot_id) as partial:
            if not self._fetch_pieces(snapshot_id, partial):
                return
            partial.finish()
        self._log.go_on_after(snapshot_id)
        self._load_snapshot()

    def _fetch_pieces(self, snapshot_id: SnapshotId, partial: PartialSnapshot) -> bool:
        """Fetch the snapshot; returns whether it is complete.

        If not, the next fetch shows how to continue.
        """
        while not self._thread.is_stopping:
            request = snapshot_request(
                self._observer,
                self._leader.epoch,
                snapshot_id,
                partial.size,
                self._config.controller_quorum_fetch_snapshot_max_bytes,
            )
            address = next_to_ask(self._leader, self._bootstrap, self._rng)
            try:
                piece = snapshot_piece(self._connected_to(address).send(request))
            except (PeerDisconnectedError, PeerTimeoutError) as error:
                self._note_silence(address, error)
                return False
            if piece is None or piece.position != partial.size:
                logger.info(
                    "metadata snapshot is not available end_offset=%d epoch=%d", *snapshot_id
                )
                return False
            partial.append(piece.data)
            if partial.size >= piece.size:
                return True
            # An empty piece before the end would be requested without end.
            if not piece.data:
                return False
        return False

    # ---- connections

    def _connected_to(self, address: NodeAddress) -> NodeConnection:
        with self._guard:
            if self._connection is None or self._connection.address != address:
                if self._connection is not None:
                    self._connection.close()
                self._connection = self._connect(address)
                if self._thread.is_stopping:
                    self._connection.close()
            return self._connection

    def _note_error(self, address: NodeAddress, error: ErrorCode) -> None:
        """Log each new error, except those that a change of the leader causes."""
        if error in _ERRORS_OF_CHANGE:
            self._last_error = None
        elif error != self._last_error:
            self._last_error = error
            logger.warning(
                "a controller refuses to send the metadata log address=%s error=%s",
                address,
                code_name(error),
            )

    def _note_silence(self, address: NodeAddress, error: IsothermError) -> None:
        self._is_leader_silent = True
        if not self._thread.is_stopping:
            self._outage.failed(f"address={address} reason='{error}'")

    def _note_answer(self) -> None:
        self._outage.worked()
