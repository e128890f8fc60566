"""Keys of Apache Kafka's server.properties that are accepted and have no effect here.

Operators paste the file they have. A key that would change what is stored or promised is never
listed here: it is either honoured or refused as unknown.
"""

from __future__ import annotations

_ONE_PROCESS = "broker and controller are one process"
_EVENT_LOOP = "one event loop serves the network"
_ONE_REPLICA = "a single broker holds every replica"
_ZOOKEEPER = "there is no ZooKeeper"

IGNORED_KEYS: dict[str, str] = {
    "process.roles": _ONE_PROCESS,
    "controller.quorum.voters": _ONE_PROCESS,
    "controller.quorum.bootstrap.servers": _ONE_PROCESS,
    "controller.listener.names": _ONE_PROCESS,
    "inter.broker.listener.name": _ONE_PROCESS,
    "inter.broker.protocol.version": _ONE_PROCESS,
    "listener.security.protocol.map": "only PLAINTEXT listeners are served",
    "metadata.log.dir": "cluster metadata lies in the first of log.dirs",
    "num.network.threads": _EVENT_LOOP,
    "num.io.threads": _EVENT_LOOP,
    "background.threads": _EVENT_LOOP,
    "socket.send.buffer.bytes": _EVENT_LOOP,
    "socket.receive.buffer.bytes": _EVENT_LOOP,
    "queued.max.requests": "queued.max.request.bytes bounds what waits",
    "num.replica.fetchers": _ONE_REPLICA,
    "replica.lag.time.max.ms": _ONE_REPLICA,
    "replica.fetch.max.bytes": _ONE_REPLICA,
    "replica.fetch.wait.max.ms": _ONE_REPLICA,
    "auto.leader.rebalance.enable": _ONE_REPLICA,
    "transaction.state.log.min.isr": _ONE_REPLICA,
    "share.coordinator.state.topic.replication.factor": "share groups are not served",
    "share.coordinator.state.topic.min.isr": "share groups are not served",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "every transaction has a timer of its own"
    ),
    "follower.fetch.last.tiered.offset.enable": _ONE_REPLICA,
    "remote.log.manager.thread.pool.size": "it sizes the pool of followers, and there are none",
    "remote.partition.remover.task.interval.ms": (
        "a deleted partition is removed from the remote tier at once, and after a failure as"
        " remote.log.manager.task.retry.* say"
    ),
    "remote.log.storage.manager.class.path": "plug-ins are Python classes on the import path",
    "remote.log.metadata.manager.class.path": "plug-ins are Python classes on the import path",
    "zookeeper.connect": _ZOOKEEPER,
    "zookeeper.connection.timeout.ms": _ZOOKEEPER,
}
