"""The keys of Apache Kafka's server.properties that are ignored, and those that are refused.

Operators use the file that they have. A key is refused if ignoring it would break a promise
(authorization, limits on topics). The other keys are ignored, for the reason beside each.
"""

from __future__ import annotations

from isotherm.config.inert import (
    EVENT_LOOP,
    METRICS,
    NO_STREAMS_GROUPS,
    OPENSSL,
    OWN_LOGIN,
)

_ONE_PROCESS = "broker and controller are one process"
_OF_CONTROLLERS = "it is for controllers, and the one in the process has no quorum"
_ELECTIONS = "controllers elect leaders, and the one in the process has nothing to elect"
_ZOOKEEPER = "there is no ZooKeeper"
_METADATA_LOG = "the cluster's metadata is kept whole in its log"
_NO_PACE = "there is no setting for the amount or the interval"
_WAITING_REQUESTS = "a completed request leaves its purgatory at once"

REFUSED_KEYS: dict[str, str] = {
    "create.topic.policy.class.name": "topics are not checked by a policy of this class",
    "alter.config.policy.class.name": "changes are not checked by a policy of this class",
    "client.quota.callback.class": "quotas are not computed by a class",
    "config.providers": "values are taken literally: config providers are not supported",
}

_IGNORED_KEYS: dict[str, str] = {
    "inter.broker.protocol.version": _ONE_PROCESS,
    "request.timeout.ms": _ONE_PROCESS,
    "early.start.listeners": "listeners open together, once all is loaded",
    "socket.send.buffer.bytes": EVENT_LOOP,
    "socket.receive.buffer.bytes": EVENT_LOOP,
    "queued.max.requests": "queued.max.request.bytes bounds the waiting requests",
    "group.consumer.assignors": "the assignors are uniform and range",
    "group.consumer.regex.refresh.interval.ms": _NO_PACE,
    "offsets.load.buffer.size": _NO_PACE,
    "offsets.topic.compression.codec": "offsets are written uncompressed",
    "producer.id.expiration.check.interval.ms": _NO_PACE,
    "transaction.two.phase.commit.enable": "transactions of two phases (KIP-939) are not supported",
    "unclean.leader.election.interval.ms": _ELECTIONS,
    "telemetry.max.bytes": "metrics of clients (KIP-714) are not taken",
    "auto.leader.rebalance.enable": _ELECTIONS,
    "leader.imbalance.check.interval.seconds": _ELECTIONS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "every transaction has a timer of its own"
    ),
    "fetch.purgatory.purge.interval.requests": _WAITING_REQUESTS,
    "producer.purgatory.purge.interval.requests": _WAITING_REQUESTS,
    "delete.records.purgatory.purge.interval.requests": _WAITING_REQUESTS,
    "remote.log.manager.thread.pool.size": (
        "remote.log.manager.expiration.thread.pool.size sizes the pool of followers too"
    ),
    "remote.partition.remover.task.interval.ms": (
        "a deleted partition is removed from the remote tier at once, and after a failure as"
        " remote.log.manager.task.retry.* say"
    ),
    "remote.log.storage.manager.class.path": "plug-ins are Python classes on the import path",
    "remote.log.metadata.manager.class.path": "plug-ins are Python classes on the import path",
    "kafka.metrics.reporters": METRICS,
    "kafka.metrics.polling.interval.secs": METRICS,
    "security.providers": OPENSSL,
    "ssl.allow.dn.changes": "a renewed certificate may have any name",
    "ssl.allow.san.changes": "a renewed certificate may have any name",
    "sasl.client.callback.handler.class": OWN_LOGIN,
    "sasl.login.class": OWN_LOGIN,
    "sasl.login.connect.timeout.ms": OWN_LOGIN,
    "sasl.login.read.timeout.ms": OWN_LOGIN,
    "sasl.oauthbearer.jwt.retriever.class": OWN_LOGIN,
    "replica.socket.receive.buffer.bytes": EVENT_LOOP,
    "controller.quorum.append.linger.ms": _OF_CONTROLLERS,
    "controller.quorum.auto.join.enable": _OF_CONTROLLERS,
    "controller.quorum.election.backoff.max.ms": _OF_CONTROLLERS,
    "controller.quorum.election.timeout.ms": _OF_CONTROLLERS,
    "controller.quorum.fetch.timeout.ms": _OF_CONTROLLERS,
}

# By the prefix of a key. These are tried after the whole keys.
_IGNORED_PREFIXES: dict[str, str] = {
    "controller.performance.": _ONE_PROCESS,
    "socket.connection.setup.": _ONE_PROCESS,
    "group.coordinator.": EVENT_LOOP,
    "unstable.": "what is not stable is not supported",
    "internal.metadata.": _METADATA_LOG,
    "metadata.log.": _METADATA_LOG,
    "metadata.max.": _METADATA_LOG,
    "alter.log.dirs.replication.quota.": (
        "the rate of moves between log directories is measured as replication.quota.window.* say"
    ),
    "add.partitions.to.txn.": _ONE_PROCESS,
    "share.fetch.purgatory.": EVENT_LOOP,
    "group.share.assignor": "share groups are assigned as by Kafka's one assignor",
    "group.share.initialize.": "states that were not begun are begun again after 30 seconds",
    "group.share.persister.": "states of share groups are in __share_group_state",
    "group.streams.": NO_STREAMS_GROUPS,
    "delegation.token.": "there are no delegation tokens",
    "sasl.login.retry.": OWN_LOGIN,
    "sasl.oauthbearer.assertion.": OWN_LOGIN,
    "metric.": METRICS,
    "metrics.": METRICS,
    "zookeeper.": _ZOOKEEPER,
}


_OF_OLDER_KAFKA = ("inter.broker.protocol.version", "zookeeper.")


def is_of_older_kafka(name: str) -> bool:
    """Whether Kafka 4.3 no longer has the key."""
    return name.startswith(_OF_OLDER_KAFKA)


def reason_to_ignore(name: str) -> str | None:
    """The reason why a Kafka key is ignored. None for a key that Kafka does not have."""
    reason = _IGNORED_KEYS.get(name)
    if reason is not None:
        return reason
    reasons = (why for prefix, why in _IGNORED_PREFIXES.items() if name.startswith(prefix))
    return next(reasons, None)
