"""A single-node Apache Kafka (KRaft, tiered storage on LocalTieredStorage) in a folder of its own.

<directory>/server.properties   what the broker was started with
<directory>/log/                log.dirs: partitions, __cluster_metadata-0, checkpoints
<directory>/remote/             rsm.config.dir: LocalTieredStorage keeps its objects in here
<directory>/server.log          stdout and stderr of the broker
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.testing.local_servers import free_ports
from oracle.class_archive import archive_options
from oracle.jars import OracleUnavailableError, require_command, resolve_jars

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 300
TOOL_TIMEOUT_S = 300
LOG_LINES_SHOWN = 12

CHEAP_COMPILER = "-XX:TieredStopAtLevel=1"
"""The option of JVMs that are not measured. They also use the archive of Kafka's classes."""
# A tool runs for a second: the time goes into starting the JVM, so the cheap compiler wins.
TOOL_OPTIONS = ("-XX:+UseSerialGC", CHEAP_COMPILER, "-Xshare:auto", "-Xmx256m")
# The collector options of Kafka's own start script.
SERVER_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)

DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"

_TIER_IS_READY = "Initialized topic-based RLMM resources successfully"

CLUSTER_ID = "SXNvdGhlcm1PcmFjbGUwMA"

# Short intervals: a closed segment is in the remote tier, and gone from disk, within a second.
EAGER_SETTINGS: Mapping[str, str] = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "300",
}


class KafkaOracle:
    """One broker process. Not thread-safe. Close it with `stop` (clean) or `kill` (SIGKILL).

    `overrides` are server.properties keys that replace the defaults of `server_properties`.
    A stopped or killed oracle can be started again on the same folder.
    """

    start_timeout_s: float = START_TIMEOUT_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    shares_classes = True
    """Whether a broker that is not measured starts with the archive of its classes."""

    def __init__(
        self,
        directory: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        heap: str = "512m",
        java_options: Iterable[str] = (),
    ) -> None:
        """`java_options` come beside those of Kafka's own start script."""
        self.directory = directory
        self.log_dir = directory / "log"
        self.remote_dir = directory / "remote"
        memory = (f"-Xms{heap}", f"-Xmx{heap}")
        self._java_options = (*SERVER_OPTIONS, *memory, *java_options)
        broker_port, controller_port = free_ports(2)
        self._properties = self._server_properties(broker_port, controller_port)
        self._properties.update(overrides or {})
        first_listener, *_ = self._properties["listeners"].split(",")
        self.bootstrap_server = first_listener.partition("://")[2]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is started"
        return self._process.pid

    @property
    def tiered_root(self) -> Path:
        """The folder that holds LocalTieredStorage's `<topic>-<partition>-<topicId>` folders."""
        return self.remote_dir / "kafka-tiered-storage"

    def start(self) -> None:
        """Format the log dir the first time, start the broker, return when it answers.

        Raises OracleUnavailableError with the end of server.log when it does not come up.
        """
        assert self._process is None, "the broker is not running yet"
        for directory in (self.directory, self.remote_dir):
            directory.mkdir(parents=True, exist_ok=True)
        config_path = self.directory / "server.properties"
        config_path.write_text("".join(f"{k}={v}\n" for k, v in self._properties.items()))
        if not (self.log_dir / "meta.properties").exists():
            self._format(config_path)
        with (self.directory / "server.log").open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                java_command(
                    "kafka.Kafka",
                    str(config_path),
                    options=self._java_options,
                    log_level="info",
                    shares_classes=self.shares_classes,
                ),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        atexit.register(self.kill)
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Shut down cleanly (SIGTERM); kill after `stop_timeout_s`."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.stop_timeout_s)
        self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL); harmless when it does not run."""
        atexit.unregister(self.kill)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def partition_directory(self, topic: str, partition: int = 0) -> Path:
        """The folder of a partition's local segments."""
        return self.log_dir / f"{topic}-{partition}"

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.1)
        exit_status = self._process.poll()
        self.kill()
        raise OracleUnavailableError(
            f"kafka did not start: exit={exit_status} timeout_s={self.start_timeout_s}\n"
            + self._first_error()
        )

    def _format(self, config_path: Path) -> None:
        run_tool(
            "kafka.tools.StorageTool", "format", "--standalone",
            f"--cluster-id={CLUSTER_ID}", f"--config={config_path}",
            shares_classes=self.shares_classes,
        )  # fmt: skip

    def _answers(self) -> bool:
        return broker_answers(self.bootstrap_server)

    def log_since_start(self) -> str:
        """The output of the process since the last `start`."""
        with (self.directory / "server.log").open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _first_error(self) -> str:
        lines = (self.directory / "server.log").read_text(errors="replace").splitlines()
        first = next((i for i, line in enumerate(lines) if " ERROR " in line), len(lines))
        start = min(first, max(0, len(lines) - LOG_LINES_SHOWN))
        return "\n".join(lines[start : start + LOG_LINES_SHOWN])

    def _server_properties(self, broker_port: int, controller_port: int) -> dict[str, str]:
        broker, controller = f"127.0.0.1:{broker_port}", f"127.0.0.1:{controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.cleaner.enable": "false",
            "remote.log.storage.system.enable": "true",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "remote.log.storage.manager.class.name": (
                "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
            ),
            "rsm.config.dir": str(self.remote_dir),
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.min.isr": "1",
        }


def java_command(
    main: str,
    *arguments: str,
    options: Iterable[str] = TOOL_OPTIONS,
    log_level: str = "warn",
    classes: Path | None = None,
    shares_classes: bool = True,
) -> list[str]:
    """The command line that runs a class of Kafka's (or a `.java` source file) on its jars; or one
    of the folder `classes`."""
    options = tuple(options)
    if shares_classes and CHEAP_COMPILER in options:
        options = (*options, *archive_options(resolve_jars(), _write_archive))
    return [
        require_command("java"),
        *options,
        f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "--class-path",
        f"{resolve_jars()}/*" + (f"{os.pathsep}{classes}" if classes else ""),
        main,
        *arguments,
    ]


class _ArchivedKafka(KafkaOracle):
    """A broker that writes the archive of its classes, and starts without one.

    Other processes wait for it.
    """

    shares_classes = False
    start_timeout_s = 300

    def _answers(self) -> bool:
        # A Kafka broker that gets SIGTERM before its remote tier is ready never ends.
        return super()._answers() and _TIER_IS_READY in self.log_since_start()


def _write_archive(options: tuple[str, ...]) -> None:
    """Write the archive with a broker: its tools and clients need most of its classes too."""
    with tempfile.TemporaryDirectory() as folder:
        oracle = _ArchivedKafka(Path(folder), java_options=[CHEAP_COMPILER, *options])
        oracle.start()
        oracle.stop()


def run_tool(
    main: str,
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    stdin: str = "",
    timeout_s: float = TOOL_TIMEOUT_S,
    classes: Path | None = None,
    shares_classes: bool = True,
) -> str:
    """Run one of Kafka's command-line tools to its end and return what it printed.

    stderr follows stdout: some tools report what they find there, and exit with 0.
    Raises subprocess.CalledProcessError, with the output as a note, on any other exit status.
    """
    completed = subprocess.run(
        java_command(
            main,
            *[os.fspath(each) for each in arguments],
            classes=classes,
            shares_classes=shares_classes,
        ),
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    output = completed.stdout + completed.stderr
    if completed.returncode != 0:
        error = subprocess.CalledProcessError(completed.returncode, [main, *arguments], output)
        error.add_note(output[-4000:])
        raise error
    return output


def dump_log_segments(
    files: Iterable[os.PathLike[str]], *options: str, cwd: Path | None = None
) -> str:
    """The output of Kafka's DumpLogSegments for segments, indexes and snapshots."""
    names = ",".join(map(os.fspath, files))
    return run_tool(DUMP_LOG_SEGMENTS, *options, "--files", names, cwd=cwd)


def broker_answers(bootstrap_server: str) -> bool:
    """Whether a Kafka-compatible broker lists itself there; takes ten seconds at most."""
    # A client that waits longer between its tries would notice the start of a broker late.
    often = {"reconnect.backoff.max.ms": 500}
    admin = AdminClient({"bootstrap.servers": bootstrap_server, "log_level": 0, **often})
    try:
        # A controller's listener answers first; a broker in the list is registered.
        return bool(admin.list_topics(timeout=10).brokers)
    except KafkaException:
        return False


@contextlib.contextmanager
def running_kafka(
    directory: Path,
    overrides: Mapping[str, str] | None = None,
    *,
    java_options: Iterable[str] = (),
    files_are_kept: bool = False,
) -> Iterator[KafkaOracle]:
    """A started KafkaOracle for tests, not for measurements.

    It is killed at the end of the block, or stopped cleanly if `files_are_kept`, for a look at its
    files. It has the cheap compiler alone: in a test the other costs more than it saves.
    """
    oracle = KafkaOracle(directory, overrides, java_options=[CHEAP_COMPILER, *java_options])
    oracle.start()
    try:
        yield oracle
    finally:
        if files_are_kept:
            oracle.stop()
        else:
            # A clean stop takes seconds, and one right after the start never ends.
            oracle.kill()
