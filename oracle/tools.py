"""Runs several of Kafka's command-line tools in one JVM."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from oracle.jars import resolve_jars
from oracle.java_program import compiled
from oracle.kafka import TOOL_TIMEOUT_S, java_command, run_tool

RUN_TOOLS = Path(__file__).with_name("RunTools.java")

_TOOLS = "org.apache.kafka.tools"
# The script of Kafka's bin/ that starts each class is named beside it.
ACLS = f"{_TOOLS}.AclCommand"  # kafka-acls
CLIENT_COMPATIBILITY = f"{_TOOLS}.ClientCompatibilityTest"
CLIENT_METRICS = f"{_TOOLS}.ClientMetricsCommand"  # kafka-client-metrics
CLUSTER = f"{_TOOLS}.ClusterTool"  # kafka-cluster
CONFIGS = "kafka.admin.ConfigCommand"  # kafka-configs
CONSOLE_CONSUMER = f"{_TOOLS}.consumer.ConsoleConsumer"  # kafka-console-consumer
CONSOLE_PRODUCER = f"{_TOOLS}.ConsoleProducer"  # kafka-console-producer
# kafka-console-share-consumer
CONSOLE_SHARE_CONSUMER = f"{_TOOLS}.consumer.ConsoleShareConsumer"
CONSUMER_GROUPS = f"{_TOOLS}.consumer.group.ConsumerGroupCommand"  # kafka-consumer-groups
CONSUMER_PERFORMANCE = f"{_TOOLS}.ConsumerPerformance"  # kafka-consumer-perf-test
DELEGATION_TOKENS = f"{_TOOLS}.DelegationTokenCommand"  # kafka-delegation-tokens
DELETE_RECORDS = f"{_TOOLS}.DeleteRecordsCommand"  # kafka-delete-records
END_TO_END_LATENCY = f"{_TOOLS}.EndToEndLatency"  # kafka-e2e-latency
FEATURES = f"{_TOOLS}.FeatureCommand"  # kafka-features
GET_OFFSETS = f"{_TOOLS}.GetOffsetShell"  # kafka-get-offsets
GROUPS = f"{_TOOLS}.GroupsCommand"  # kafka-groups
LEADER_ELECTION = f"{_TOOLS}.LeaderElectionCommand"  # kafka-leader-election
LOG_COMPACTION_TESTER = f"{_TOOLS}.LogCompactionTester"
LOG_DIRS = f"{_TOOLS}.LogDirsCommand"  # kafka-log-dirs
MESSAGE_COPIER = f"{_TOOLS}.TransactionalMessageCopier"
METADATA_QUORUM = f"{_TOOLS}.MetadataQuorumCommand"  # kafka-metadata-quorum
PRODUCER_PERFORMANCE = f"{_TOOLS}.ProducerPerformance"  # kafka-producer-perf-test
REASSIGN_PARTITIONS = f"{_TOOLS}.reassign.ReassignPartitionsCommand"  # kafka-reassign-partitions
SHARE_GROUPS = f"{_TOOLS}.consumer.group.ShareGroupCommand"  # kafka-share-groups
STORAGE = "kafka.tools.StorageTool"  # kafka-storage
STREAMS_GROUPS = f"{_TOOLS}.streams.StreamsGroupCommand"  # kafka-streams-groups
TOPICS = f"{_TOOLS}.TopicCommand"  # kafka-topics
TRANSACTIONS = f"{_TOOLS}.TransactionsCommand"  # kafka-transactions
VERIFIABLE_CONSUMER = f"{_TOOLS}.VerifiableConsumer"  # kafka-verifiable-consumer
VERIFIABLE_PRODUCER = f"{_TOOLS}.VerifiableProducer"  # kafka-verifiable-producer
VERSIONS = f"{_TOOLS}.BrokerApiVersionsCommand"  # kafka-broker-api-versions


# The class behind each bin/kafka-<tool>.sh of the administrators.
SCRIPTS = {
    "acls": ACLS,
    "broker-api-versions": VERSIONS,
    "client-metrics": CLIENT_METRICS,
    "cluster": CLUSTER,
    "configs": CONFIGS,
    "console-consumer": CONSOLE_CONSUMER,
    "consumer-groups": CONSUMER_GROUPS,
    "delegation-tokens": DELEGATION_TOKENS,
    "delete-records": DELETE_RECORDS,
    "features": FEATURES,
    "get-offsets": GET_OFFSETS,
    "groups": GROUPS,
    "leader-election": LEADER_ELECTION,
    "log-dirs": LOG_DIRS,
    "metadata-quorum": METADATA_QUORUM,
    "reassign-partitions": REASSIGN_PARTITIONS,
    "share-groups": SHARE_GROUPS,
    "streams-groups": STREAMS_GROUPS,
    "topics": TOPICS,
    "transactions": TRANSACTIONS,
}


def command_of(line: str, files: Path, server: str) -> list[str]:
    """The class and arguments of a command line: a tool of SCRIPTS and its words.

    `@name` is a file in `files`.
    """
    tool, *words = line.split()
    arguments = [str(files / word[1:]) if word.startswith("@") else word for word in words]
    return [SCRIPTS[tool], *arguments, "--bootstrap-server", server]


def run_tools(*commands: list[str]) -> list[str]:
    """Run commands, each a class and its arguments; return their output.

    AssertionError when one fails.
    """
    results = run_tools_to_status(*commands)
    for command, (status, printed) in zip(commands, results, strict=True):
        assert status == 0, f"a tool failed: {command}\n{printed}"
    return [printed for _, printed in results]


def run_tools_to_status(
    *commands: list[str], timeout_s: float = TOOL_TIMEOUT_S
) -> list[tuple[int, str]]:
    """The exit status and output of each command."""
    arguments = [argument for command in commands for argument in (*command, "---")][:-1]
    # Compiled once: Java would compile a source file in each run, which takes longer than most
    # tools.
    classes = compiled(resolve_jars(), [RUN_TOOLS])
    output = run_tool(RUN_TOOLS.stem, *arguments, timeout_s=timeout_s, classes=classes)
    results: list[tuple[int, str]] = []
    part: list[str] = []
    for line in output.splitlines():
        if line.startswith("=== "):
            results.append((int(line.removeprefix("=== ")), "\n".join(part).strip("\n")))
            part = []
        else:
            part.append(line)
    assert len(results) == len(commands), output
    return results


class ToolProcess:
    """A JVM that runs single commands, for a test that checks a result before the next command.

    Runs from construction to `close`. One thread at a time.
    """

    def __init__(self) -> None:
        classes = compiled(resolve_jars(), [RUN_TOOLS])
        self._process = subprocess.Popen(
            java_command(RUN_TOOLS.stem, classes=classes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command, a class and its arguments; return its exit status and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(command) + "\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.startswith("=== "):
                return int(line.removeprefix("=== ")), "".join(printed).strip("\n")
            printed.append(line)
        raise AssertionError(f"the JVM of the tools has ended: {command}\n{''.join(printed)}")
