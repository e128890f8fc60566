"""This broker's membership in a cluster with a quorum of Apache Kafka's controllers: all parts
together.

The order of a start and a stop is that of Kafka's BrokerServer:

    member = QuorumMember(config, metadata_log, identity, ...)
    member.start()                               follows the metadata log; nothing is registered yet
    metadata = member.wait_until_caught_up()     has all that was committed when it began
    member.register(endpoints)                   ports are bound; the broker is fenced
    ...                                          the caller loads logs, takes the roles of
                                                 metadata.image, adds listeners to metadata
    member.publish_on(control_executor)          later images, with changes to listeners
    member.start_heartbeats()
    member.wait_until_unfenced()                 the controller elects this broker from now on
    ...                                          requests are served
    member.begin_controlled_shutdown()           on a stop: further images move leaderships away
    member.wait_until_let_go()
    member.stop_publishing()                     before the listeners of metadata are closed
    member.stop()                                last: requests in channels end with errors

The steps between `register` and `publish_on` may take long: the controller ends a session only
after the first heartbeat. A failure that ends the membership goes to `on_failure`, once, from any
thread. Reasons: docs/decisions/0097.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import Any

from isotherm.broker.metadata.directory_ids import NodeIdentity
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import METADATA_VERSION_FEATURE
from isotherm.broker.metadata.quorum.broker_lifecycle import BrokerState
from isotherm.broker.metadata.quorum.controller_channel import ControllerChannel
from isotherm.broker.metadata.quorum.controller_connection import (
    ControllerConnection,
    ControllerVersions,
)
from isotherm.broker.metadata.quorum.controller_discovery import QuorumLeader
from isotherm.broker.metadata.quorum.directory_assignments import DirectoryAssignments
from isotherm.broker.metadata.quorum.followed_log import FollowedLog
from isotherm.broker.metadata.quorum.heartbeats import BrokerHeartbeats
from isotherm.broker.metadata.quorum.metadata_fetch import Observer
from isotherm.broker.metadata.quorum.observer import MetadataObserver
from isotherm.broker.metadata.quorum.producer_ids import ProducerIdBlocks
from isotherm.broker.metadata.quorum.quorum_metadata import Publication, QuorumMetadata
from isotherm.broker.metadata.quorum.registration import registration_request
from isotherm.broker.metadata.quorum.snapshots import SnapshotFiles
from isotherm.broker.surroundings import Surroundings
from isotherm.client.listener_security import controller_security
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.config.broker import BrokerConfig
from isotherm.errors import BrokerUnreachableError, PeerDisconnectedError, RequestTimedOutError
from isotherm.log.partition_log import PartitionLog
from isotherm.types import ProducerId, TopicIdPartition

logger = logging.getLogger(__name__)

# The level 3.7-IV2. From it on a registration has the ids of the log directories.
DIRECTORIES_METADATA_VERSION = 17
# Answers of controllers are small, except fetches. A fetch may exceed its limit by one metadata
# batch, which has at most 8 MiB.
_RESPONSE_SLACK_BYTES = 16 * 1024 * 1024


class QuorumMember:
    """See the module for the order of calls.

    For one thread, except where a method says otherwise.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metadata_log: PartitionLog,
        identity: NodeIdentity,
        surroundings: Surroundings,
        *,
        incarnation_id: uuid.UUID,
        previous_broker_epoch: int,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`metadata_log` comes from `LogManager.open_metadata_log`, `previous_broker_epoch` from
        `LogManager.previous_broker_epoch`. `incarnation_id` is new for each start."""
        self._config = config
        self._identity = identity
        self._incarnation_id = incarnation_id
        self._previous_broker_epoch = previous_broker_epoch
        self._on_failure = on_failure
        clock = self._clock = surroundings.clock
        self._security = controller_security(config)
        self._caught_up: Future[MetadataImage] = Future()
        self._publication: Publication | None = None
        self._latest: MetadataImage | None = None
        self._guard = threading.Lock()  # guards the two fields above
        self._has_failed = False
        self._channels: list[ControllerChannel] = []
        followed = FollowedLog(metadata_log, SnapshotFiles(surroundings.fs, metadata_log.directory))
        self._observer = self._new_observer(followed, surroundings.rng)
        self._heartbeats = BrokerHeartbeats(
            config.node_id,
            self._controller_connection("heartbeat", config.quorum.broker_heartbeat_interval_ms),
            interval_ms=config.quorum.broker_heartbeat_interval_ms,
            metadata_offset=self._published_offset,
            on_failure=self._fail,
            clock=clock,
        )
        self._metadata: QuorumMetadata | None = None
        self.controller_versions = ControllerVersions()
        self.requests = self._new_channel("forwarding", self.controller_versions.learn)
        """The channel of forwarded client requests, and of other requests that may wait behind
        them.
        """
        self._producer_ids = ProducerIdBlocks(
            config.node_id, self._current_epoch, self.requests.send, clock
        )
        self._assignments = DirectoryAssignments(
            config.node_id,
            self._current_epoch,
            self._published_image,
            self._new_channel("directory-assignments").send,
            clock,
        )

    def _new_observer(self, followed: FollowedLog, rng: random.Random) -> MetadataObserver:
        config, identity = self._config, self._identity
        addresses = config.quorum_addresses
        return MetadataObserver(
            Observer(
                config.node_id,
                identity.cluster_id,
                identity.directory_ids[config.metadata_log_dir],
            ),
            followed,
            config=config.quorum,
            bootstrap=[NodeAddress(address.host, address.port) for address in addresses],
            voters={
                address.controller_id: NodeAddress(address.host, address.port)
                for address in addresses
                if address.controller_id is not None
            },
            connect=partial(
                self._connect,
                name="raft-client",
                # Longer than the fetch's own wait, for which the leader may withhold the answer.
                timeout_ms=config.quorum.controller_quorum_request_timeout_ms,
            ),
            on_image=self._take_image,
            on_failure=self._fail,
            clock=self._clock,
            rng=rng,
        )

    # ---- start

    def start(self) -> None:
        """Begin to follow the metadata log. Does not wait."""
        self._observer.start()
        for channel in self._channels:
            channel.start()

    def wait_until_caught_up(self, timeout_s: float | None = None) -> QuorumMetadata:
        """The metadata with at least all records that the quorum had committed at the start.
        `publish_on` publishes later images.

        Raises BrokerUnreachableError after `timeout_s` (default: server.max.startup.time.ms), and
        the error that `on_failure` got.
        """
        if timeout_s is None:
            timeout_s = self._startup_timeout_s
        try:
            image = self._caught_up.result(timeout_s)
        except FutureTimeoutError as error:
            raise BrokerUnreachableError(
                "the cluster's metadata could not be fetched in time"
                f" controllers={','.join(str(controller) for controller in self._controllers)}"
                f" timeout_s={timeout_s:g} leader={self._observer.leader}"
            ) from error
        self._metadata = QuorumMetadata(self._config, image)
        return self._metadata

    def register(self, endpoints: Sequence[Endpoint]) -> int:
        """Register with the active controller; returns the broker epoch. The broker is fenced
        afterwards.

        Retries until initial.broker.registration.timeout.ms has passed. Raises ConfigError if the
        controller refuses this broker for good, and BrokerUnreachableError if no controller
        registers it.
        """
        request = registration_request(
            self._config,
            cluster_id=self._identity.cluster_id,
            incarnation_id=self._incarnation_id,
            endpoints=endpoints,
            log_dirs=self._identity.directory_ids.values(),
            previous_broker_epoch=self._previous_broker_epoch,
        )
        return self._heartbeats.register(
            request,
            timeout_s=self._config.quorum.initial_broker_registration_timeout_ms / 1000,
        )

    def publish_on(self, executor: Executor) -> None:
        """Publish every later image on `executor`, the control thread."""
        assert self._metadata is not None, "it has caught up"
        publication = Publication(self._metadata, executor, self._fail)
        # In one step with `_take_image`, so that the image of just then is offered by one of the
        # two threads.
        with self._guard:
            self._publication, latest = publication, self._latest
        if latest is not None:
            publication.offer(latest)

    def start_heartbeats(self) -> None:
        """Start heartbeats.

        From the first one on the controller fences this broker when they stop.
        """
        self._heartbeats.start()
        self._assignments.start()

    def wait_until_unfenced(self, timeout_s: float | None = None) -> None:
        """Ask to be unfenced, and wait for it. The caller has loaded this broker's partitions.

        Raises RequestTimedOutError after `timeout_s` (default: server.max.startup.time.ms).
        """
        self._heartbeats.unfence()
        _wait(
            self._heartbeats.unfenced,
            self._startup_timeout_s if timeout_s is None else timeout_s,
            "no controller has unfenced this broker in time",
        )

    def give_up(self) -> None:
        """Abort the start. Calls that wait for the controllers, now or later, raise
        PeerDisconnectedError. Any thread. The caller still calls `stop`."""
        self._heartbeats.give_up()
        self._end_waits(PeerDisconnectedError("the broker stops: its start is aborted"))

    # ---- while it runs: any thread

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before it."""
        return self._heartbeats.broker_epoch

    @property
    def state(self) -> BrokerState:
        return self._heartbeats.state

    @property
    def leader(self) -> QuorumLeader:
        """The quorum's leader that the observer knows."""
        return self._observer.leader

    def open_channel(self, name: str) -> ControllerChannel:
        """A new queue of requests to the active controller, with its own connection and thread.
        `name` is part of both names ("alter-partition", ...). `stop` ends it."""
        channel = self._new_channel(name)
        channel.start()
        return channel

    def generate_producer_id(self) -> ProducerId:
        """See ProducerIdBlocks."""
        return self._producer_ids.generate()

    def note_directory(self, partition: TopicIdPartition, path: Path) -> None:
        """Report that this broker's replica has its log in this directory, if the controller does
        not know it yet. That happens only in brokers with several directories."""
        directory_id = self._identity.directory_ids.get(path)
        if directory_id is not None:
            self._assignments.assign(partition, directory_id)

    def note_log_dir_failure(self, path: Path) -> None:
        """Report to the controller that a log directory is offline. If that fails for
        log.dir.failure.timeout.ms, `on_failure` gets LogDirFailedError."""
        directory_id = self._identity.directory_ids.get(path)
        if directory_id is not None:
            timeout_ms = self._config.quorum.log_dir_failure_timeout_ms
            self._heartbeats.note_offline(directory_id, timeout_ms / 1000)

    # ---- stop

    def begin_controlled_shutdown(self) -> None:
        """Ask the controller to move this broker's leaderships away. Images with the moves are
        still published. Does nothing without controlled.shutdown.enable."""
        if self._config.quorum.controlled_shutdown_enable:
            self._heartbeats.begin_controlled_shutdown()

    def wait_until_let_go(self, timeout_s: float) -> bool:
        """Wait until the controller allows the stop; returns whether it did."""
        if not self._config.quorum.controlled_shutdown_enable:
            return False
        try:
            self._heartbeats.let_go.result(timeout_s)
        except FutureTimeoutError:
            logger.warning(
                "controller has not completed the controlled shutdown in time timeout_s=%g",
                timeout_s,
            )
            return False
        return True

    def stop_publishing(self) -> None:
        """Stop publishing: after the return no listener of the metadata is called. Must not be
        called on the control thread, for which it waits."""
        if self._publication is not None:
            self._publication.stop()

    def stop(self) -> None:
        """End every thread and connection. Idempotent."""
        self._heartbeats.stop()
        # Before the threads that wait for answers of a channel: the stop makes those answers fail.
        for channel in self._channels:
            channel.stop()
        self._assignments.stop()
        self._observer.stop()
        self.stop_publishing()

    # ---- inside

    @property
    def _controllers(self) -> Sequence[NodeAddress]:
        return [
            NodeAddress(address.host, address.port) for address in self._config.quorum_addresses
        ]

    @property
    def _startup_timeout_s(self) -> float:
        return min(self._config.quorum.server_max_startup_time_ms / 1000, threading.TIMEOUT_MAX)

    def _take_image(self, image: MetadataImage) -> None:
        # In one step with `publish_on`: one of the two threads offers this image.
        with self._guard:
            self._latest, publication = image, self._publication
        with contextlib.suppress(InvalidStateError):  # this is a later image
            self._caught_up.set_result(image)
        if publication is not None:
            publication.offer(image)
            self._register_again_if_needed(image)

    def _register_again_if_needed(self, image: MetadataImage) -> None:
        """Register again after an upgrade of metadata.version, if the older version dropped the
        directories of the registration. Source: Kafka BrokerRegistrationTracker."""
        broker = image.brokers.get(self._config.node_id)
        if broker is None or broker.broker_epoch != self.broker_epoch or broker.log_dirs:
            return
        if image.features.get(METADATA_VERSION_FEATURE, 0) >= DIRECTORIES_METADATA_VERSION:
            self._heartbeats.register_again()

    def _published_image(self) -> MetadataImage:
        return MetadataImage() if self._metadata is None else self._metadata.image

    def _published_offset(self) -> int:
        return self._published_image().end_offset - 1

    def _current_epoch(self) -> int:
        return self._heartbeats.broker_epoch

    def _new_channel(
        self, name: str, greet: Callable[[NodeConnection], None] | None = None
    ) -> ControllerChannel:
        timeout_ms = self._config.quorum.controller_socket_timeout_ms
        channel = ControllerChannel(
            f"controller-{name}",
            self._controller_connection(name, timeout_ms, greet),
            self._clock,
            requests_max=self._config.quorum.controller_requests_max,
        )
        self._channels.append(channel)
        return channel

    def _end_waits(self, error: Exception) -> None:
        for future in (self._caught_up, self._heartbeats.unfenced):
            with contextlib.suppress(InvalidStateError):  # it was done before
                future.set_exception(error)

    def _fail(self, error: Exception) -> None:
        self._end_waits(error)
        with contextlib.suppress(InvalidStateError):
            self._heartbeats.let_go.set_exception(error)
        with self._guard:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            self._on_failure(error)

    def _controller_connection(
        self,
        name: str,
        timeout_ms: int,
        greet: Callable[[NodeConnection], None] | None = None,
    ) -> ControllerConnection:
        connect = partial(self._connect, name=name, timeout_ms=timeout_ms)
        return ControllerConnection(lambda: self._observer.leader, connect, self._clock, greet)

    def _connect(self, address: NodeAddress, *, name: str, timeout_ms: int) -> NodeConnection:
        quorum = self._config.quorum
        return NodeConnection(
            address,
            client_id=f"broker-{self._config.node_id}-{name}",
            connect_timeout_s=quorum.socket_connection_setup_timeout_ms / 1000,
            request_timeout_s=timeout_ms / 1000,
            response_bytes_max=_RESPONSE_SLACK_BYTES
            + max(
                quorum.controller_quorum_fetch_max_bytes,
                quorum.controller_quorum_fetch_snapshot_max_bytes,
            ),
            security=self._security,
            clock=self._clock,
        )


def _wait(future: Future[Any], timeout_s: float, failure: str) -> None:
    try:
        future.result(timeout_s)
    except FutureTimeoutError as error:
        raise RequestTimedOutError(f"{failure} timeout_s={timeout_s:g}") from error
