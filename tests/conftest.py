"""Configuration and fixtures that tests of several folders share: the order of files, brokers,
Kafka's jars, and the one Spark session of a run."""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from isotherm.log.fs import FileSystem
from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.jars import OracleUnavailableError, resolve_jars, resolve_spark_source_jars
from tests.support.spark_scheduling import SparkOnOneWorker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

# No deadline for examples, and no limit for drawing them: both times depend on the machine, and no
# test depends on that.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new examples", _UNTIMED, print_blob=True)
# docs/decisions/0182: .ci/run draws the same examples in each run of the same code.
settings.register_profile("same examples", _UNTIMED, print_blob=True, derandomize=True)
settings.load_profile(os.environ.get("ISOTHERM_EXAMPLES", "new examples"))

# The files that take a minute or more, the longest first.
LONGEST = (
    "fault/test_hostile_search.py",
    "fault/test_erasure_crash.py",
    "interop/test_readme.py",
    "property/remote/test_schedules.py",
    "oracle/test_spark_cluster.py",
    "interop/test_cluster.py",
    "interop/test_quiet_restarts.py",
    "unit/spark/test_damaged_buckets.py",
    "spark/test_planted_damage.py",
    "fault/test_request_costs.py",
    "interop/test_suites.py",
    "interop/test_moving_coordinators.py",
    "spark/test_streaming.py",
    "spark/test_drop_in.py",
    "spark/test_bucket_refusals.py",
    "unit/spark/test_altered_batches.py",
    "spark/test_users_storage.py",
    "spark/test_secured_brokers.py",
    "interop/test_console.py",
    "oracle/test_access_is_kafkas.py",
    "spark/test_compact.py",
    "unit/kernels/test_machine_code.py",
    "interop/test_franz_go.py",
    "fault/test_damaged_files.py",
    "oracle/test_registered_values.py",
    "property/protocol/test_codec.py",
    "interop/frameworks/test_frameworks_under_kills.py",
    "interop/frameworks/test_broken_brokers.py",
    "oracle/test_pipeline_on_cluster.py",
    "oracle/test_tables_by_spark_with_jars.py",
    "spark/test_streaming_crashes.py",
)
# Files of these folders run after LONGEST and before all other files.
LONG_FOLDERS = ("oracle", "spark", "interop", "fault")

# A test that takes minutes on an idle machine takes an hour on a busy one.
SOAK_TIMEOUT_S = 4 * 3600


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the outputs of the code into transcripts (tests/support/transcript.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--rewrite") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--rewrite needs one process: without -n")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the format of captured log lines. pytest adds its handlers to each logger that does not
    propagate, and a PySparkLogger, which a failed query makes, sets its own format on them: all
    later captures of the process would have JSON."""
    plugin: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter = lambda _formatter: None


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts take the outputs of the code."""
    return bool(request.config.getoption("--rewrite"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkOnOneWorker | None:
    """Keep the files with Spark on one worker, where `--dist loadfile` keeps files whole."""
    return SparkOnOneWorker(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files so that long ones start first. A long file that starts last would keep one
    worker busy alone.

    Soak tests without a timeout of their own get SOAK_TIMEOUT_S.
    """
    items.sort(key=lambda item: turn_of(item.path.relative_to(Path(__file__).parent)))
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """Exclude the collected items from garbage collection. They live to the end of the run and are
    a hundred times as many objects as a test makes; every full collection would visit them."""
    gc.collect()
    gc.freeze()


def turn_of(path: Path) -> int:
    """The sort key of a test file: lower values run first."""
    if path.as_posix() in LONGEST:
        return LONGEST.index(path.as_posix())
    return len(LONGEST) + (path.parts[0] not in LONG_FOLDERS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason, which names what to install, and the
    failure of each test that ran a second time."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("not run")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason.splitlines()[0]}")
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"ran a second time: {report.nodeid}")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests of a module. Each test uses topics of its own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., EmbeddedBroker]]:
    """A function that starts a broker with the given settings, by default in the same folder each
    time."""
    with contextlib.ExitStack() as started:

        def start(
            settings: Mapping[str, str] | None = None,
            directory: Path = tmp_path / "broker",
            fs: FileSystem | None = None,
        ) -> EmbeddedBroker:
            return started.enter_context(EmbeddedBroker(directory, settings, fs=fs))

        yield start


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """A function that starts `isotherm serve`. All starts of a test use the same folder."""
    started: list[BrokerProcess] = []

    def start(
        settings: Mapping[str, str] | None = None, config: Path | None = None
    ) -> BrokerProcess:
        process = BrokerProcess(tmp_path / "broker", settings or {}, config=config)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture(scope="session")
def kafka_tools() -> Path:
    """The folder of Kafka's jars, for tests that run its tools (`oracle.kafka.run_tool`).

    Where the jars cannot be resolved, the tests are skipped with the reason. With
    ISOTHERM_REQUIRE_ORACLE=1 (continuous integration) they fail instead.
    """
    try:
        return resolve_jars()
    except OracleUnavailableError as error:
        if os.environ.get("ISOTHERM_REQUIRE_ORACLE") == "1":
            pytest.fail(f"the oracle is required: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_source_jars() -> list[Path]:
    """Jars of Spark's own Kafka source. Empty where they cannot be resolved and are not
    required."""
    try:
        return resolve_spark_source_jars()
    except OracleUnavailableError as error:
        if os.environ.get("ISOTHERM_REQUIRE_ORACLE") == "1":
            pytest.fail(f"the oracle is required: {error}")
        return []


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, kafka_source_jars: list[Path]
) -> Iterator[SparkSession]:
    """The Spark session of the run, small and quick to start. A process can have only one."""
    import isotherm.spark
    from tests.support.spark_classes import java_options

    _end_jvm()
    session = isotherm.spark.session(
        "isotherm-tests",
        master="local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.driver.memory": "1g",
            "spark.jars": ",".join(map(str, kafka_source_jars)),
            "spark.driver.extraJavaOptions": java_options(),
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def _end_jvm() -> None:
    """Stop the JVM that a command of an earlier test may have started in this process. Its class
    loader lacks the jars of this session; only a new JVM loads them."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=300)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def spark_with_kafka_source(spark: SparkSession, kafka_source_jars: list[Path]) -> SparkSession:
    """The session, for tests that need `format("kafka")`. Without its jars they are skipped."""
    if not kafka_source_jars:
        pytest.skip("the jars of Spark's Kafka source cannot be resolved: is there mvn?")
    return spark
