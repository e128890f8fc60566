"""What pages name exists: files, modules, targets of make, commands and options, configuration
keys.

A page names a thing of Isotherm between backticks, or runs `isotherm` in an indented or fenced
block. What belongs to others, or exists only while a user works, is listed here with its owner.
The records of docs/decisions/ tell of the past and are not checked. tests/interop/test_metrics.py
checks the metrics.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from isotherm.cli.main import app

ROOT = Path(__file__).parents[3]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if DECISIONS not in page.parents),
]

# Files of Apache Kafka's and franz-go's source.
FILES_OF_OTHERS = {
    "pkg/kgo",
    "pkg/kadm",
    "metadata/src/main/resources/common/metadata",
    "storage/src/test/java/org/apache/kafka/tiered/storage/integration",
    "transaction-coordinator/src/main/resources/common/message",
}
# What users write, or what a command of the same page makes.
FILES_OF_USERS = {
    "server.properties",
    "isotherm-data/bucket",
    ".venv/bin/pip",
    "bin/isotherm",
    "environment/bin/python",
    "bucket/",
    "lake/catalog.db",
    "flights/",
    "flights_dead_letters/",
    "_commits/",
    "_staged/",
    "isotherm-quarantine/<time>/",
}
# A zip of the package, a key with a variable end, columns of a table.
NOT_MODULES = {"isotherm.zip", "isotherm.NAME", "isotherm.offsets", "isotherm.offset.0"}
OPTIONS_OF_OTHERS = {
    "-m": "pytest",
    "-k": "pytest",
    "--read-only": "docker run",
    "--tmpfs": "docker run",
    "--py-files": "spark-submit",
    "--packages": "spark-submit",
    "--replay": "python -m bench.hostile_search",
    "--pictures": "examples/demo/pipeline.py",
    "-stray": "the end of a directory's name",
}
FEATURES = {
    *("group.version", "metadata.version", "remote.log.metadata.compaction", "share.version"),
    *("streams.version", "transaction.version"),
}
KEYS_OF_OTHERS = {
    # Clients of Kafka and of registries, Connect, Streams.
    *("main.consumer.bootstrap.servers", "restore.consumer.bootstrap.servers"),
    *("batch.size", "client.rack", "linger.ms", "sasl.mechanism", "sasl.username"),
    *("bootstrap.servers", "main.consumer.bootstrap.servers"),
    *("restore.consumer.bootstrap.servers", "security.protocol"),
    *("basic.auth.user.info", "exactly.once.source.support", "exactly.once.support"),
    *("max.retries", "sasl.oauthbearer.header.urlencode", "schemas.enable", "ssl.ca.location"),
    # The Iceberg table's, and the manifest's on an object of Aiven's.
    *("gc.enabled", "io.aiven", "io.aiven.kafka"),
    # What a plug-in gets beside its own keys.
    *("broker.id", "cluster.id", "log.dir"),
    # Refused by name, or read without a declaration of their own.
    *("alter.config.policy.class.name", "client.quota.callback.class", "config.providers"),
    *("create.topic.policy.class.name", "log.flush.interval.messages"),
}
# Files, loggers and domains of Kafka, a header of records, tables.
NOT_KEYS = {
    *("bootstrap.checkpoint", "partition.metadata", "decided.at"),
    *("org.apache.kafka.storage.internals.log", "audit.html"),
    *("a.b", "catalog.database.table", "tests.support.schedules"),
}
KEY_PREFIXES = ("rsm.config.", "rlmm.config.", "listener.name.prometheus.", "plain.", "kafka.")
FILE_SUFFIXES = r"\w\.(?:java|json|jsonl|md|properties|py|sh|toml|txt|yaml|yml)$"


def prose_and_blocks(page: Path) -> tuple[str, str]:
    """A page without its fenced blocks, and these blocks."""
    text = page.read_text(encoding="utf-8")
    fenced = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
    return fenced.sub("", text), "\n".join(fenced.findall(text))


def names(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose_and_blocks(page)[0])


def command_lines(page: Path) -> Iterator[str]:
    """What follows `isotherm` where a page runs it, up to a pipe or a redirection."""
    prose, blocks = prose_and_blocks(page)
    indented = "\n".join(re.findall(r"^ {4}.*", prose, re.MULTILINE))
    for line in f"{blocks}\n{indented}".replace("\\\n", " ").splitlines():
        run = re.match(r"\s*(?:\$ )?(?:\S*/)?isotherm ([a-z].*)", line)
        if run:
            yield run[1]
    for name in names(page):
        if name.startswith("isotherm "):
            yield name.removeprefix("isotherm ")


@functools.cache
def files() -> str:
    """The paths of the repository, a line each."""
    tops = ("bench", "docs", "examples", "oracle", "packaging", "scripts", "src", "suites", "tests")
    paths = [path for top in (*tops, ".ci") for path in (ROOT / top).rglob("*")]
    below = "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in paths)
    return below + "".join(f"/{path.name}\n" for path in ROOT.iterdir())


def is_file(name: str) -> bool:
    """Whether a path of the repository is or ends with `name`; `<...>` stands for one name."""
    path = name.rstrip("/").removeprefix("./")
    if "<" not in path:
        return f"/{path}\n" in files()
    pattern = re.sub(r"<\w+>", "[^/]+", path.replace(".", r"\."))
    return re.search(f"/{pattern}$", files(), re.MULTILINE) is not None


def files_of(page: Path) -> set[str]:
    found = set()
    for name in names(page):
        path, *_ = name.split()
        is_path = re.fullmatch(r"\.?[\w.<>-]+(?:/[\w.<>-]+)*/?", path) is not None
        if is_path and ("/" in path or re.search(FILE_SUFFIXES, path)):
            found.add(path)
    return {path for path in found if not re.match(r"kafka-[a-z-]+\.sh$", path)}


def modules_of(page: Path) -> set[str]:
    named = (re.fullmatch(r"(isotherm(?:\.\w+)+)(?:\(.*\))?", name) for name in names(page))
    return {match[1] for match in named if match is not None}


def is_importable(dotted: str) -> bool:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            value = getattr(value, attribute, None)
        return value is not None
    return False


# The modules that say what exists are loaded in the tests: each worker collects.


@functools.cache
def commands() -> Any:
    return typer.main.get_command(app)


@functools.cache
def subcommands(command: Any) -> dict[str, Any]:
    """The commands of a group by their names; none of a command that is no group."""
    if not hasattr(command, "list_commands"):
        return {}
    return {name: command.get_command(None, name) for name in command.list_commands(None)}


def options(command: Any) -> set[str]:
    found = {"-h", "--help"}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found


@functools.cache
def all_options(command: Any) -> set[str]:
    return options(command).union(*map(all_options, subcommands(command).values()))


def untrue_parts(line: str) -> list[str]:
    """The words of a command line that the CLI's own parser does not have."""
    words = shlex.split(line, comments=True)
    ends = [words.index(end) for end in ("|", ">", "2>", "&", "&&", ";") if end in words]
    command = commands()
    untrue = []
    for word in words[: min(ends, default=None)]:
        if word.startswith("-") and word != "-":
            untrue += [] if word.partition("=")[0] in options(command) else [word]
        elif subcommands(command) and not re.fullmatch(r"<\w+>", word):
            if word not in subcommands(command):
                return [*untrue, word]
            command = subcommands(command)[word]
    return untrue


def keys_of(page: Path) -> set[str]:
    named = (re.fullmatch(r"([a-z0-9]+(?:\.[a-z0-9-]+)+)(?:=.*)?", name) for name in names(page))
    dotted = {match[1] for match in named if match is not None}
    return {key for key in dotted if not re.search(FILE_SUFFIXES, key) and key[:9] != "isotherm."}


@functools.cache
def declared_keys() -> set[str]:
    from isotherm.cli.config import configuration_page
    from isotherm.config.definition import config_keys
    from isotherm.config.groups import GroupLevelConfig
    from isotherm.spark.options import source_option_keys

    listed = re.findall(r"^\| ([a-z0-9.]+) \|", configuration_page(), re.MULTILINE)
    return {*listed, *config_keys(GroupLevelConfig), *source_option_keys()}


def is_key(name: str) -> bool:
    bare = name
    for prefix in KEY_PREFIXES:
        bare = bare.removeprefix(prefix)
    # Clients and Spark have keys of their own under these prefixes.
    return bool({name, bare} & declared_keys()) or name.startswith(("kafka.", "spark."))


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_that_a_page_names_exist(page: Path) -> None:
    others = FILES_OF_OTHERS | FILES_OF_USERS
    missing = {path for path in files_of(page) if not is_file(path)}
    assert {path for path in missing if path.removeprefix("./") not in others} == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_modules_and_what_they_have_can_be_imported(page: Path) -> None:
    named = modules_of(page) - NOT_MODULES
    assert {dotted for dotted in named if not is_importable(dotted)} == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_targets_of_make_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = (re.match(r"make ([a-z-]+)", name) for name in names(page))
    assert {match[1] for match in runs if match is not None} - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_have_the_options_that_a_page_gives_them(page: Path) -> None:
    untrue = {line: untrue_parts(line) for line in command_lines(page)}
    assert {line: words for line, words in untrue.items() if words} == {}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_options_that_stand_alone_are_of_some_command(page: Path) -> None:
    alone = {
        word.partition("=")[0]
        for name in names(page)
        if name.startswith("-")
        for word in name.split()
        if re.match(r"--?[a-zA-Z]", word)
    }
    assert alone - all_options(commands()) - OPTIONS_OF_OTHERS.keys() == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_configuration_keys_are_declared(page: Path) -> None:
    unknown = {name for name in keys_of(page) if not is_key(name)}
    assert unknown - FEATURES - KEYS_OF_OTHERS - NOT_KEYS == set()


def test_names_of_others_are_on_a_page_and_are_not_ours() -> None:
    """A name that no page has any longer leaves the lists."""
    paths = set().union(*map(files_of, PAGES))
    assert {path.removeprefix("./") for path in paths} >= FILES_OF_OTHERS | FILES_OF_USERS
    keys = set().union(*map(keys_of, PAGES))
    assert keys >= FEATURES | KEYS_OF_OTHERS | NOT_KEYS
    assert set().union(*map(modules_of, PAGES)) >= NOT_MODULES
    assert {path for path in FILES_OF_OTHERS | FILES_OF_USERS if is_file(path)} == set()
    assert {key for key in FEATURES | KEYS_OF_OTHERS | NOT_KEYS if is_key(key)} == set()
    assert OPTIONS_OF_OTHERS.keys() & all_options(commands()) == set()


def test_untrue_names_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`broker/apis/no_such_api.py` `isotherm.spark.no_such_name` `log.no.such.key=1`\n\n"
        "    isotherm topics forget t\n\n"
        "```sh\n.venv/bin/isotherm consume t \\\n  --no-such 1 | cat --any\n```\n"
    )
    assert [path for path in files_of(page) if not is_file(path)] == ["broker/apis/no_such_api.py"]
    assert [name for name in modules_of(page) if not is_importable(name)] == [
        "isotherm.spark.no_such_name"
    ]
    assert [name for name in keys_of(page) if not is_key(name)] == ["log.no.such.key"]
    assert [untrue_parts(line) for line in command_lines(page)] == [["--no-such"], ["forget"]]
