"""Mistakes that users make: what the command line prints, its exit code, and what it leaves behind.

A row is a mistake. Each ends with one line that names the thing, its place, and what to do if that
does not follow.
"""

from __future__ import annotations

import gc
import http.server
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.cli.main import main
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from tests.support.other_clients import without_other_clients
from tests.support.wait_notices import without_wait_notices

PROCESS_TIMEOUT_S = 300
FAILED, USAGE, DAMAGE = 1, 2, 3


class Mistake(NamedTuple):
    command: str
    """With the names of `places` in braces."""
    exit_code: int
    message: str
    """A pattern that is found in the line on standard error, or in `prints`."""
    prints: bool = False
    """The message is in what the command prints, and standard error is empty."""
    stdin: str = ""
    leaves: tuple[str, ...] = ()


class Server(http.server.BaseHTTPRequestHandler):
    """A server that has nothing."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


ANY_PORT = "-o listeners=PLAINTEXT://127.0.0.1:0"
S3 = (
    f"{ANY_PORT} -o rsm.config.url=s3://b -o rsm.config.aws.access.key.id=a"
    " -o rsm.config.aws.secret.access.key=b -o rsm.config.s3.endpoint.url="
)
TABLE = "pipeline table flights -b {broker} --path {bucket}"

MISTAKES = [
    # ---- commands and options
    Mistake("nosuch", USAGE, r"No such command 'nosuch' hint='isotherm -h'"),
    Mistake("topics lst", USAGE, "No such command 'lst'. Did you mean 'list'"),
    Mistake("topics list --bootstap x", USAGE, "No such option: --bootstap.*--bootstrap-server"),
    Mistake("topics list extra", USAGE, r"unexpected extra argument\(s\) \(extra\)"),
    Mistake("topics create", USAGE, "Missing argument 'NAME'"),
    Mistake("produce", USAGE, "Missing argument 'TOPIC'"),
    Mistake("config nosuch", USAGE, "No such command 'nosuch' hint='isotherm config -h'"),
    Mistake("config list nosuch", USAGE, "SCOPE: one of broker, remote,.*: nosuch"),
    Mistake("pipeline nosuch", USAGE, "No such command 'nosuch' hint='isotherm pipeline -h'"),
    Mistake("top --interval-s 0", USAGE, "'--interval-s': 0.0 is not in the range"),
    Mistake("top --price nosuch", USAGE, "no price of storage value='nosuch' expected_one_of="),
    # ---- addresses and logins
    Mistake("consume flights -b {closed}", FAILED, r"{closed}: connection refused"),
    Mistake("consume flights -b {http}", FAILED, "not Kafka: it answers"),
    Mistake("consume flights -b nosuch.invalid:9092", FAILED, "nosuch.invalid:9092: no such host"),
    Mistake("consume flights -b localhost:0", USAGE, "a port is 1 to 65535 .*port=0"),
    Mistake("consume flights -b localhost:port", USAGE, "hint='HOST:PORT'"),
    Mistake("consume flights -b http://{broker}", USAGE, "hint='HOST:PORT'"),
    Mistake("consume flights -b ''", USAGE, "no broker is named key=bootstrap.servers"),
    Mistake(
        "consume flights -b {silent} -X socket.connection.setup.timeout.ms=1000",
        FAILED,
        "{silent}: no answer in 1 s",
    ),
    Mistake(
        "consume flights -b {broker} -X socket.connection.setup.timeout.ms=500",
        USAGE,
        r"value 500 is outside allowed range [0-9.]+'$",
    ),
    Mistake("consume flights -b {broker} -X security.protocol=SSL", FAILED, "not TLS: plain text"),
    Mistake(
        "consume flights -b {broker} -X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=PLAIN"
        " -X sasl.username=a -X sasl.password=b",
        FAILED,
        "that listener expects no login: set security.protocol to PLAINTEXT",
    ),
    Mistake(
        "consume flights -b {broker} -X security.protocol=SASL_PLAINTEXT",
        USAGE,
        "the mechanism of the login is not set key=sasl.mechanism",
    ),
    Mistake(
        "topics list -b {broker} -X security.protocol=FOO", USAGE, "no such protocol value=FOO"
    ),
    Mistake(
        "topics list -b {broker} -X security.protocol=SSL -X ssl.ca.location=missing.pem",
        USAGE,
        "no such file path=missing.pem key=ssl.ca.location option=-X",
    ),
    Mistake(
        "topics list -b {broker} -X security.protocol=SSL -X ssl.truststore.location=missing.jks",
        USAGE,
        "cannot be opened path=missing.jks reason='No such file or directory'",
    ),
    Mistake(
        "topics list -b {broker} -X nosuch=7", USAGE, 'No such configuration property: "nosuch"'
    ),
    Mistake("topics list -b {broker} -X nosuch", USAGE, "not of the form KEY=VALUE text='nosuch'"),
    Mistake(
        "topics list --command-config missing",
        USAGE,
        "cannot read .*path=missing reason='No such file or directory'",
    ),
    Mistake("topics list --command-config folder", USAGE, "File 'folder' is a directory"),
    Mistake(
        "topics list --command-config client.properties",
        USAGE,
        "no such protocol value=FOO .*file=client.properties",
    ),
    Mistake("topics list --command-config text", USAGE, 'file=text reason=.*property: "hello"'),
    Mistake("topics list --command-config bytes", USAGE, "path=bytes reason='not UTF-8: byte 0'"),
    Mistake("top -b {closed} --once", FAILED, "{closed}: connection refused"),
    # ---- topics and groups
    Mistake("topics create flights -b {broker}", FAILED, "topic exists topic=flights"),
    Mistake("topics create 'a b' -b {broker}", FAILED, "characters other than .* topic='a b'"),
    Mistake("topics create t -b {broker} --partitions many", USAGE, "'many' is not a valid int"),
    Mistake("topics create t -b {broker} --partitions 0", FAILED, "above 0, or -1 .*partitions=0"),
    Mistake(
        "topics create t -b {broker} --partitions 1000000", USAGE, "1000000 is not in the range"
    ),
    Mistake(
        "topics create t -b {broker} --replication-factor 3",
        FAILED,
        "fewer brokers than replicas topic=t replication_factor=3 brokers=1",
    ),
    Mistake(
        "topics create t -b {broker} --replication-factor 1000000",
        USAGE,
        "1000000 is not in the range",
    ),
    Mistake(
        "topics create t -b {broker} --config nosuch=1",
        FAILED,
        "unknown configuration key key=nosuch topic=t",
    ),
    Mistake(
        "topics create t -b {broker} --config retention.ms=soon",
        FAILED,
        "soon for configuration retention.ms: Not a number .*topic=t",
    ),
    Mistake("topics create t --config retention.ms", USAGE, "KEY=VALUE text='retention.ms'"),
    Mistake(
        "topics create t -b {broker} --config remote.storage.enable=maybe",
        FAILED,
        "maybe for configuration remote.storage.enable: Expected value to be either true or false",
    ),
    Mistake(
        "topics create t -b {broker} --config cleanup.policy=compact"
        " --config remote.storage.enable=true",
        FAILED,
        "a tiered topic cannot be compacted key=cleanup.policy topic=t",
    ),
    Mistake("topics describe flihgts -b {broker}", FAILED, "topic=flihgts nearest=flights"),
    Mistake("topics alter flights -b {broker}", USAGE, "nothing to change: give --config"),
    Mistake(
        "topics alter flights --partitions 1 -b {broker}",
        FAILED,
        "only be increased topic=flights partitions=2 requested=1",
    ),
    Mistake("topics alter flights --config nosuch=1 -b {broker}", FAILED, "key key=nosuch"),
    Mistake(
        "topics alter flights --delete-config segment.byte -b {broker}",
        FAILED,
        "no such key key=segment.byte topic=flights nearest=segment.bytes",
    ),
    Mistake("topics alter nosuch --partitions 5 -b {broker}", FAILED, "no such topic topic=nosuch"),
    Mistake("topics delete nosuch -b {broker}", FAILED, "no such topic topic=nosuch"),
    Mistake("topics describe-storage nosuch -b {broker}", FAILED, "no such topic topic=nosuch"),
    Mistake(
        "topics describe-storage flights --price price.toml",
        USAGE,
        "file=price.toml reason=Expected",
    ),
    Mistake(
        "topics describe-storage flights --price a.toml", USAGE, "file=a.toml reason=.*No such"
    ),
    Mistake("topics describe-storage flights --price -1", USAGE, "no price of storage value='-1'"),
    Mistake(
        "topics describe-storage flights -b {broker} --path s4://bucket",
        USAGE,
        "no known kind of store key=url value='s4://bucket' known=",
    ),
    Mistake(
        "topics describe-storage flights -b {broker} --path missing",
        USAGE,
        "there is no such folder url=file:///.*/missing",
    ),
    Mistake("groups describe nosuch -b {broker}", FAILED, "no such group.* group=nosuch"),
    Mistake("remote segments nosuch -b {broker}", FAILED, "no such topic topic=nosuch"),
    Mistake(
        "remote events --topic flight -b {broker}",
        FAILED,
        "no such topic topic=flight nearest=flights",
    ),
    Mistake("remote segments flights -b {broker} --layout x", USAGE, "x for configuration layout"),
    Mistake("remote migrate", USAGE, "choose one of --check and --run"),
    Mistake("remote migrate --check --run", USAGE, "choose one of --check and --run"),
    Mistake(
        "remote migrate --check --log-dir folder -b {broker}",
        USAGE,
        "choose one of --bootstrap-server, --log-dir and --config",
    ),
    Mistake(
        "remote migrate --check --log-dir folder",
        USAGE,
        "not a broker's log directory: it has no meta.properties option=--log-dir dir=folder",
    ),
    Mistake("remote migrate --check --log-dir missing", USAGE, "not a broker's log .*dir=missing"),
    Mistake("remote migrate --check -c missing", USAGE, "path=missing reason='No such file"),
    # ---- records
    Mistake(
        "produce flights -b {broker} -p 9",
        FAILED,
        r"lines=1 acknowledged=0 not_acknowledged=1 topic=flights",
        stdin="hello",
    ),
    Mistake("produce flights -p -5", USAGE, "'--partition' / '-p': -5 is not in the range"),
    Mistake("produce flights -z rar", USAGE, "--compression: one of none, gzip, .*: rar"),
    Mistake("produce flights -K ''", USAGE, "--key-separator: it is empty"),
    Mistake(r"produce flights -K '\q'", USAGE, r"--key-separator: no such escape: \\q"),
    Mistake("produce flights -b {closed}", FAILED, "{closed}: connection refused", stdin="hello"),
    Mistake("consume flights -o yesterday", USAGE, "--offset: beginning, end, .*: yesterday"),
    Mistake("consume flights -o @yesterday", USAGE, "--offset: not a time value='yesterday'"),
    Mistake("consume flights -o -5", USAGE, "--offset: beginning, end, a number or @TIME: -5"),
    Mistake("consume flights -o ²", USAGE, "--offset: beginning, end, a number or @TIME: ²"),
    Mistake(
        "consume flights -o 9223372036854775808", USAGE, "--offset: at most 9223372036854775807"
    ),
    Mistake(
        "consume flights -o @9223372036854775808", USAGE, "time after 9223372036854775807 ms since"
    ),
    Mistake("consume flights -b {broker} -p 9", USAGE, "no partition 9: flights has 0 to 1"),
    Mistake("consume flights -p -1", USAGE, "'--partition' / '-p': -1 is not in the range"),
    Mistake("consume flights -p x", USAGE, "'x' is not a valid int"),
    Mistake("consume flights -n 0", USAGE, "'--max-records' / '-n': 0 is not in the range"),
    Mistake("consume flights --format %q", USAGE, "--format: no such mark: %q"),
    Mistake(
        "consume flights -b {broker} -p 1 -o 50",
        0,
        "read from its end topic=flights partition=1 offset=50 log_start=0 end=0",
    ),
    # ---- files of logs
    Mistake("dump-log", USAGE, "Missing argument 'FILE...'"),
    Mistake("dump-log missing.log", USAGE, "File 'missing.log' does not exist"),
    Mistake("dump-log folder", USAGE, "File 'folder' is a directory"),
    Mistake("dump-log text", USAGE, "not a segment, index, snapshot .*: text"),
    Mistake("dump-log a.index", USAGE, "not a 20-digit offset with a suffix: a.index"),
    Mistake("dump-log {zeros}.log --decode x", USAGE, "--decode: one of text, remote-log-metadata"),
    Mistake("dump-log {zeros}.log --json", DAMAGE, "size=100 position=0 file={zeros}.log"),
    Mistake("dump-log {zeros}.index", DAMAGE, "not a whole number of entries.*file={zeros}.index"),
    Mistake("dump-log {zeros}.timeindex", DAMAGE, "not a whole number .*file={zeros}.timeindex"),
    Mistake("dump-log {zeros}.txnindex", DAMAGE, "not a whole number .*file={zeros}.txnindex"),
    Mistake("dump-log {zeros}.snapshot", DAMAGE, "shorter than its header .*file={zeros}.snapshot"),
    Mistake(
        "dump-log folder/leader-epoch-checkpoint",
        DAMAGE,
        "no integer line=1 text='hello' file=folder/leader-epoch-checkpoint",
    ),
    # ---- a broker's settings
    Mistake("storage info", USAGE, "Missing option '--config' / '-c'"),
    Mistake("storage info -c missing", USAGE, "path=missing reason='No such file or directory'"),
    Mistake("storage info -c folder", USAGE, "path=folder reason='Is a directory'"),
    Mistake("storage info -c many.properties", USAGE, "many for configuration num.partitions: Not"),
    Mistake("storage info -c empty", FAILED, "isotherm-data/log does not exist", prints=True),
    Mistake("storage format -c empty", USAGE, "Missing option '--cluster-id' / '-t'"),
    Mistake(
        "storage format -c many.properties -t x", USAGE, "many for configuration num.partitions"
    ),
    Mistake("storage format -c empty -t x -S nosuch", USAGE, "find equals sign in SCRAM argument"),
    Mistake("serve -c missing", USAGE, "path=missing reason='No such file or directory'"),
    Mistake(
        "serve -c many.properties", USAGE, "many for configuration num.partitions: Not a number"
    ),
    Mistake("serve -o num.partitions=many", USAGE, "many for configuration num.partitions"),
    Mistake("serve -o num.partitions", USAGE, "not of the form KEY=VALUE text='num.partitions'"),
    Mistake("serve -o listeners=nonsense", USAGE, "parse a listener name from nonsense"),
    Mistake("serve -o listeners=PLAINTEXT://:99999", USAGE, "listeners .*port is 0 to 65535"),
    Mistake("serve -o listeners=FOO://:9092", USAGE, "No security protocol .* listener FOO"),
    Mistake("serve -o process.roles=controller", USAGE, "key=process.roles value=controller"),
    Mistake("serve --log-level loud", USAGE, "--log-level: no such level: loud"),
    Mistake("serve --log-lines-per-s -1", USAGE, "'--log-lines-per-s': -1.0 is not in the range"),
    Mistake(f"serve {ANY_PORT} -d text", FAILED, "dir=.*/text/log"),
    Mistake(f"serve {ANY_PORT} -d {{broker_folder}}", FAILED, "in use by another process"),
    Mistake(f"serve {ANY_PORT} -o rsm.config.url=s4://b", USAGE, "key=url value='s4://b' known="),
    Mistake(
        f"serve {ANY_PORT} -o rsm.config.nosuch=1", USAGE, "unknown configuration key key=nosuch"
    ),
    Mistake(
        f"serve {ANY_PORT} -o rsm.config.chunk.size=0", USAGE, "0 for configuration chunk.size"
    ),
    Mistake(f"serve {S3}nonsense", USAGE, "key=s3.endpoint.url value='nonsense' hint='http://"),
    Mistake(f"serve {S3}http://h:99999", USAGE, "key=s3.endpoint.url value='http://h:99999'"),
    Mistake(f"serve {S3}ftp://h", USAGE, "key=s3.endpoint.url value='ftp://h'"),
    Mistake(
        f"doctor {S3}http://{{closed}}", FAILED, "connection refused operation=put", prints=True
    ),
    Mistake(
        f"doctor {ANY_PORT} -c missing", USAGE, "failed +configuration: .*missing", prints=True
    ),
    Mistake("doctor -o num.partitions=many", USAGE, "failed +configuration: .*many", prints=True),
    Mistake(
        "doctor -o listeners=PLAINTEXT://127.0.0.1:{taken}",
        FAILED,
        "failed +listener .*{taken}: Address already in use",
        prints=True,
    ),
    Mistake(f"doctor {ANY_PORT} -d text", FAILED, "it is a file: name a folder", prints=True),
    Mistake(f"doctor {ANY_PORT} -b {{closed}}", FAILED, "failed +broker: .*refused", prints=True),
    Mistake(f"doctor {ANY_PORT} -b http://{{closed}}", USAGE, "hint='HOST:PORT'", prints=True),
    # ---- the console
    Mistake("console -b {closed} --port {taken}", USAGE, "port={taken} reason='Address already in"),
    Mistake("console --port 99999", USAGE, "'--port': 99999 is not in the range"),
    Mistake("console --port x", USAGE, "'--port': 'x' is not a valid int"),
    Mistake("console --host 0.0.0.0 --port {free}", USAGE, "key=--allow-host host=0.0.0.0 hint="),
    Mistake(
        "console --host 192.0.2.1 --without-login", USAGE, "host=192.0.2.1 reason='Cannot assign"
    ),
    Mistake("console --host no.invalid --without-login", USAGE, "host=no.invalid reason="),
    Mistake("console --reports missing", USAGE, "Directory 'missing' does not exist"),
    Mistake(
        "console -b {broker} --allow-changes --port {free}", USAGE, "needs a folder of reports"
    ),
    Mistake(
        "console --credentials-file missing --port {free}", USAGE, "credentials .* value=missing"
    ),
    Mistake("console --credentials-file text --port {free}", USAGE, "NAME:PASSWORD .*value=text"),
    Mistake("console --tls-certificate text --port {free}", USAGE, "a certificate needs its key"),
    Mistake(
        "console --tls-certificate missing --tls-key text --port {free}",
        USAGE,
        "certificate=missing private_key=text reason='No such file or directory'",
    ),
    Mistake(
        "console --tls-certificate text --tls-key text --port {free}",
        USAGE,
        "certificate=text private_key=text reason='they are not PEM'",
    ),
    Mistake("console --metrics nonsense --port {free}", USAGE, "key=--metrics value=nonsense"),
    Mistake(
        "console --registry nonsense --port {free}", USAGE, "registry=nonsense reason='Invalid"
    ),
    Mistake("console --registry http://a:b@h --port {free}", USAGE, "not contain a password"),
    Mistake("console --registry-option x --port {free}", USAGE, "form KEY=VALUE text='x'"),
    Mistake("console --layout x --port {free}", USAGE, "Invalid value x for configuration layout"),
    Mistake(
        "console -b {broker} --path missing --port {free}",
        USAGE,
        "no such folder url=file:///.*/missing",
    ),
    # ---- jobs, before Spark starts
    Mistake("pipeline audit", USAGE, "choose one of --bootstrap-server, --log-dir and --dump"),
    Mistake("pipeline audit -b {closed}", FAILED, "{closed}: connection refused"),
    Mistake("pipeline audit -b {broker} --master x", USAGE, "key=master value='x' hint='local"),
    Mistake("pipeline audit -b {broker} --retention-ms t=x", USAGE, "--retention-ms value=t=x"),
    Mistake(
        "pipeline audit -b {broker} --retention-ms flight=5",
        FAILED,
        "no such topic topic=flight nearest=flights",
    ),
    Mistake("pipeline audit -b {broker} --now soon", USAGE, "not a time value='soon' hint="),
    Mistake(
        "pipeline audit -b {broker} --report folder", USAGE, "path=folder reason='it is a fold"
    ),
    Mistake(
        "pipeline audit -b {broker} --report no/a", USAGE, "path=no/a reason='there is no fold"
    ),
    Mistake("pipeline audit -b {broker} -o x=1", USAGE, "-o goes with --dump"),
    Mistake("pipeline audit -b {broker} --spark-config x", USAGE, "form KEY=VALUE text='x'"),
    Mistake(
        "pipeline audit -b {broker} --master spark://{closed}",
        FAILED,
        "no Spark master answers key=master value='spark://{closed}' reason='Connection refused'",
    ),
    Mistake("pipeline sweep -b {broker}", USAGE, "the path of the tier is missing option=path"),
    Mistake("pipeline sweep -b {broker} --path missing", USAGE, "no such folder url=.*/missing"),
    Mistake(
        "pipeline sweep -b {broker} --path {bucket} --for-good",
        USAGE,
        "--for-good goes with --delete",
    ),
    Mistake(
        "pipeline scrub -b {broker} --path {bucket} --sample x", USAGE, "not a share value='x'"
    ),
    Mistake("pipeline scrub -b {broker} --path {bucket} --sample 2", USAGE, "at most 1 sample=2"),
    Mistake("pipeline verify -b {broker}", USAGE, "choose one of --against, --against-topic"),
    Mistake("pipeline rebuild --path {bucket} --to-topic x", USAGE, "goes with --bootstrap-server"),
    Mistake("pipeline rebuild --path {bucket} --log-dir text", USAGE, "text reason='a file'"),
    Mistake("pipeline rebuild --path {bucket} --topic-id x", USAGE, "form KEY=VALUE text='x'"),
    Mistake("pipeline project -b {broker}", USAGE, "Missing option '--to'"),
    Mistake("pipeline table", USAGE, "Missing argument 'TOPIC'"),
    Mistake(f"{TABLE} --to excel", USAGE, "value=excel known=iceberg,delta,parquet"),
    Mistake(f"{TABLE} --value xml", USAGE, "option=--value value=xml known=raw,"),
    Mistake(f"{TABLE} --value avro", USAGE, "needs a schema registry value=avro hint="),
    Mistake(f"{TABLE} --value avro --registry x", USAGE, "registry=x reason='Invalid url x'"),
    Mistake(f"{TABLE} --mode newest", USAGE, "option=--mode value=newest known=append,latest"),
    Mistake(f"{TABLE} --partition-by week", USAGE, "--partition-by value=week known=none,hour,day"),
    Mistake(f"{TABLE} --until never", USAGE, "option=--until value=never known=latest,tiered"),
    Mistake(f"{TABLE} --expire-snapshots soon", USAGE, "not a duration .*value=soon hint="),
    Mistake(f"{TABLE} --retention forever", USAGE, "value=forever known=keep,follow"),
    Mistake(f"{TABLE} --follow --dry-run", USAGE, "a dry run does not follow"),
    Mistake(f"{TABLE} --to-option x", USAGE, "form KEY=VALUE text='x'"),
    Mistake(f"{TABLE} --warehouse s4://x", USAGE, "needs a catalog warehouse=s4://x hint="),
    Mistake(
        f"{TABLE} --warehouse text", USAGE, "--warehouse folder=.*/text reason='.*/text is not"
    ),
    Mistake(f"{TABLE} --max-bytes much", USAGE, "'--max-bytes': 'much' is not a valid int"),
    Mistake(
        "pipeline table nosuch -b {broker} --path {bucket}",
        FAILED,
        "the brokers have no such topic missing=nosuch",
    ),
]


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, str]]:
    """What the rows name: a broker with two partitions of `flights`, and servers of other kinds."""
    folder = tmp_path_factory.mktemp("places") / "broker"
    with (
        EmbeddedBroker(folder, {"auto.create.topics.enable": "false"}) as broker,
        http.server.HTTPServer(("127.0.0.1", 0), Server) as web,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("flights", 2, 1)])["flights"].result()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("flights", b"N14228", partition=0)
        producer.flush()
        threading.Thread(target=web.serve_forever, daemon=True).start()
        closed, free = free_ports(2)
        yield {
            "broker": broker.bootstrap_servers,
            "broker_folder": str(folder),
            "bucket": str(folder / "bucket"),
            "closed": f"127.0.0.1:{closed}",
            "free": str(free),
            "http": f"127.0.0.1:{web.server_port}",
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "taken": str(silent.getsockname()[1]),
            "zeros": "0" * 20,
        }
        web.shutdown()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that the rows name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "leader-epoch-checkpoint").write_text("hello\n")
    files = {
        "empty": b"",
        "text": b"hello\n",
        "bytes": b"\xff\xfe",
        "client.properties": b"security.protocol=FOO\n",
        "many.properties": b"num.partitions=many\n",
        "price.toml": b"[[storage\n",
        "a.index": b"",
        f"{'0' * 20}.log": b"\x07" * 100,
    }
    for suffix in ("index", "timeindex", "txnindex", "snapshot"):
        files[f"{'0' * 20}.{suffix}"] = b"abc"
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_process() -> Iterator[None]:
    """Takes back what a command sets for its whole process."""
    umask = os.umask(0o022)
    os.umask(umask)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    os.umask(umask)
    root.handlers[:] = handlers
    root.setLevel(level)
    gc.unfreeze()


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.command)
@pytest.mark.usefixtures("own_process")
def test_mistake_is_one_line(
    mistake: Mistake,
    places: dict[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = files_of(folder)
    monkeypatch.setattr(sys, "argv", ["isotherm", *shlex.split(mistake.command.format(**places))])
    (folder.parent / "stdin").write_text(mistake.stdin)
    with (folder.parent / "stdin").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            main()
    printed, errors = capfd.readouterr()
    errors = without_other_clients(errors, " ".join([mistake.command, *places.values()]))
    errors = without_wait_notices(errors)
    check(mistake, places, ended.value.code, printed, errors)
    assert files_of(folder) - before == set(mistake.leaves)


def check(
    mistake: Mistake, places: dict[str, str], status: object, printed: str, errors: str
) -> None:
    pattern = mistake.message
    for name, text in places.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(text))
    assert status == mistake.exit_code, errors
    lines = errors.splitlines()
    if mistake.prints:
        assert re.search(pattern, printed), printed
        assert lines == []
        return
    assert printed == ""
    assert re.search(pattern, lines[-1]), errors
    assert all(line.startswith("isotherm: ") for line in lines)
    refused = [line for line in lines if " not acknowledged line" not in line]
    assert len(refused) == 1


def test_there_are_as_many_as_promised() -> None:
    assert len({each.command for each in MISTAKES}) == len(MISTAKES) >= 120


@pytest.mark.parametrize(
    "mistake",
    [
        Mistake("topics create flights -b {broker}", FAILED, "topic exists topic=flights"),
        Mistake(f"serve {S3}nonsense", USAGE, "key=s3.endpoint.url value='nonsense'"),
        Mistake(
            "serve -o listeners=PLAINTEXT://127.0.0.1:{taken}", USAGE, "address already in use"
        ),
    ],
    ids=lambda mistake: mistake.command,
)
def test_process_of_its_own_says_the_same(
    mistake: Mistake, places: dict[str, str], folder: Path
) -> None:
    before = files_of(folder)
    done = subprocess.run(
        [sys.executable, "-m", "isotherm.cli.main", *mistake.command.format(**places).split()],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )
    check(mistake, places, done.returncode, done.stdout, done.stderr)
    assert files_of(folder) == before
