"""Machine code is used only for the sources that it was compiled from.

Kernels import nothing of Isotherm but other kernels, so a copy of their package alone is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import pytest

from isotherm.kernels import machine_code, processor
from isotherm.kernels.kernel import stamp, target

pytestmark = pytest.mark.slow  # as a file: many tests are processes that compile
PACKAGE = Path(machine_code.__file__).parent
# Decodes one record at offset 102 with a kernel that inlines functions of two other modules.
SCRIPT = """
import json, logging, sys
import numpy as np
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(levelname)s %(message)s")
from isotherm.kernels.heads import decode_heads
from isotherm.kernels.kernel import kernels, stamp
from isotherm.kernels.tables import BATCH
record = np.frombuffer(bytes([12, 0, 0, 4, 1, 1, 0]), dtype=np.uint8)
batches = np.zeros(1, dtype=BATCH)
batches["base_offset"], batches["last_offset_delta"] = 100, 5
batches["records_count"], batches["payload_end"] = 1, len(record)
rows = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int8)
result = decode_heads(record, record[:0], batches, 0, 1000, rows)
(loaded,) = kernels
print(json.dumps({
    "result": result, "offset": int(rows[0][0]), "stamp": stamp(),
    "compiled": loaded.is_compiled, "has_compiler": "numba" in sys.modules,
}))
"""
DECODED = {"result": [-1, -1, 1], "offset": 102}
COMPILED = {"compiled": True, "has_compiler": True}
LOADED = {"compiled": False, "has_compiler": False}


def run(*command: str, path: Path, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *command],
        env={"PYTHONPATH": str(path), "PATH": os.environ["PATH"], **environment},
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def decode(path: Path, **environment: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run("-c", SCRIPT, path=path, **environment)[0])
    return result


def copy_sources(root: Path) -> Path:
    """A copy of the package without machine code. Returns the folder for sys.path."""
    (root / "isotherm").mkdir(parents=True)
    shutil.copy(PACKAGE.parent / "__init__.py", root / "isotherm")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, root / "isotherm" / "kernels", ignore=ignored)
    return root


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return copy_sources(tmp_path / "copy")


class Compiled(NamedTuple):
    folder: Path
    """A copy with machine code beside its sources. It was compiled in a folder that is gone."""
    stamp: str

    @property
    def machine_code(self) -> Path:
        return self.folder / "isotherm" / "kernels" / "__pycache__" / self.stamp


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    root = tmp_path_factory.mktemp("compiled")
    made_in = copy_sources(root / "made")
    printed = decode(made_in)
    assert printed == DECODED | COMPILED | {"stamp": printed["stamp"]}
    return Compiled(made_in.rename(root / "moved"), printed["stamp"])


@pytest.fixture
def zipped(copied: Path, tmp_path: Path) -> Path:
    """The copy as a zip file, so that nothing can be written beside its sources."""
    return Path(shutil.make_archive(str(tmp_path / "isotherm"), "zip", copied))


def test_change_of_an_inlined_function_is_seen_and_what_did_not_change_is_loaded(
    compiled: Compiled, tmp_path: Path
) -> None:
    copied = shutil.copytree(compiled.folder, tmp_path / "copy")
    assert decode(copied) == DECODED | LOADED | {"stamp": compiled.stamp}

    inlined = copied / "isotherm" / "kernels" / "raw_memory.py"
    text = inlined.read_text()
    every_byte_is_0 = text.replace(
        "return builder.zext(byte, context.get_value_type(types.uint64))",
        "return context.get_constant(types.uint64, 0)",
    )
    assert every_byte_is_0 != text
    inlined.write_text(every_byte_is_0)
    changed = decode(copied)
    assert changed["stamp"] != compiled.stamp
    assert changed["result"] == [0, 0, 0]  # a record of size 0 is damaged
    assert changed["compiled"]

    inlined.write_text(text)
    assert decode(copied) == DECODED | LOADED | {"stamp": compiled.stamp}


@pytest.fixture
def lock_held(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[contextlib.ExitStack]:
    """Hold the compile lock of SCRIPT's kernel, as another process would. Closing the stack
    releases it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    with contextlib.ExitStack() as held:
        held.enter_context(machine_code.made_by_one(stamp(), "heads.decode_heads"))
        yield held


def test_process_waits_for_another_that_compiles_and_takes_what_that_has_made(
    copied: Path, tmp_path: Path, lock_held: contextlib.ExitStack, compiled: Compiled
) -> None:
    environment = {"PYTHONPATH": str(copied), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        lines = iter(waiting.stderr)
        assert any("another process that compiles" in line for line in lines)
        shutil.copytree(
            compiled.machine_code, tmp_path / "cache" / "isotherm-kernels" / compiled.stamp
        )
        lock_held.close()
        result = json.loads(waiting.stdout.read())
    assert (DECODED | LOADED).items() <= result.items()


def test_process_of_the_lowest_priority_waits_for_none(
    copied: Path, tmp_path: Path, lock_held: contextlib.ExitStack
) -> None:
    program = f"import os; os.nice(19)\n{SCRIPT}"
    printed, messages = run("-c", program, path=copied, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert (DECODED | COMPILED).items() <= json.loads(printed).items()
    assert "waited for" not in messages


def test_process_that_has_waited_long_enough_compiles(lock_held: contextlib.ExitStack) -> None:
    entered = []
    with machine_code.made_by_one(stamp(), "heads.decode_heads", wait_max_s=0):
        entered.append("without the lock")
    # The first holder still has the lock.
    with machine_code.made_by_one(stamp(), "heads.decode_heads", wait_max_s=0):
        entered.append("again")
    assert len(entered) == 2


def test_lock_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with machine_code.made_by_one("stamp", "kernel"):
        (lock,) = machine_code.chosen_folder(tmp_path).iterdir()
        assert lock.name == ".stamp.kernel.lock"
        assert not machine_code.is_kept("stamp", "kernel")
    assert list(machine_code.chosen_folder(tmp_path).iterdir()) == []


def test_copied_package_takes_its_machine_code_along(compiled: Compiled, tmp_path: Path) -> None:
    moved = shutil.copytree(compiled.folder, tmp_path / "elsewhere" / "copy")
    os.utime(moved / "isotherm" / "kernels" / "heads.py", (1, 1))
    assert decode(moved) == DECODED | LOADED | {"stamp": compiled.stamp}


def test_every_kernel_can_be_shipped_in_a_folder(zipped: Path, tmp_path: Path) -> None:
    run("-m", "isotherm.kernels", "--into", str(tmp_path / "made"), path=PACKAGE.parents[1])
    shutil.copytree(tmp_path / "made", tmp_path / "shipped")
    bare = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    folder = str(tmp_path / "shipped")
    printed, _ = run("-m", "isotherm.kernels", path=zipped, NUMBA_CACHE_DIR=folder, **bare)
    kernels, compiled = (word.partition("=")[2] for word in printed.split()[:2])
    shipped = list((tmp_path / "shipped").glob("isotherm-kernels/*/*"))
    assert int(kernels) == len(shipped) > 10
    assert compiled == "0"


def test_machine_code_goes_to_the_user_when_nothing_can_be_written_beside_the_sources(
    zipped: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    first = decode(zipped, HOME=str(home))
    kept = home / ".cache" / "isotherm" / "kernels" / first["stamp"]
    assert [file.name for file in kept.iterdir()] == ["heads.decode_heads"]
    assert decode(zipped, HOME=str(home))["compiled"] is False
    (kept / "heads.decode_heads").write_bytes(b"cut")
    assert decode(zipped, HOME=str(home)) == first
    assert decode(zipped, HOME=str(home))["compiled"] is False


def test_user_without_a_home_keeps_it_among_temporary_files(zipped: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"HOME": str(zipped), "TMPDIR": str(temporary)}  # HOME is a file
    assert decode(zipped, **environment)["compiled"] is True
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert decode(zipped, **environment)["compiled"] is False


def test_where_nothing_can_be_written_a_process_compiles_and_says_so(
    zipped: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    (temporary / f"isotherm-kernels-{os.getuid()}").mkdir(parents=True)
    (temporary / f"isotherm-kernels-{os.getuid()}").chmod(0o777)  # any user can write there
    printed, logged = run("-c", SCRIPT, path=zipped, HOME=str(zipped), TMPDIR=str(temporary))
    assert json.loads(printed)["offset"] == 102
    assert logged.count("INFO kernels are compiled") == 1
    assert logged.count("WARNING compiled kernels are not kept") == 1


def test_other_processor_has_another_stamp(compiled: Compiled) -> None:
    show = "from isotherm.kernels.kernel import stamp; print(stamp(), end='')"
    generic, _ = run("-c", show, path=compiled.folder, NUMBA_CPU_NAME="generic")
    assert compiled.stamp == stamp() != generic


def test_generic_machine_code_is_that_of_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = target()
    monkeypatch.setattr(processor, "description", lambda: ("another",))
    assert target() != before
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    generic = target()
    monkeypatch.undo()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert target() == generic != before


WITHOUT_IMAGES = f"""
import pathlib
from isotherm.kernels import processor
processor._DESCRIPTION = pathlib.Path("/nonexistent")
{SCRIPT}"""


def test_system_that_does_not_describe_its_processor_has_numbas_own_machine_code(
    copied: Path,
) -> None:
    first = json.loads(run("-c", WITHOUT_IMAGES, path=copied)[0])
    assert (DECODED | COMPILED).items() <= first.items()
    again = json.loads(run("-c", WITHOUT_IMAGES, path=copied)[0])
    assert again == first | {"compiled": False}
    assert decode(copied)["stamp"] != first["stamp"]


# What a stamp is made of


SOURCES = {"a.py": b"x", "b.py": b"y"}


@pytest.mark.parametrize(
    ("sources", "versions"),
    [
        ({"a.py": b"x", "b.py": b"z"}, ["3.11", "0.68.1"]),
        ({"a.py": b"y", "b.py": b"x"}, ["3.11", "0.68.1"]),
        ({"a.py": b"x", "c.py": b"y"}, ["3.11", "0.68.1"]),
        ({"a.py": b"x"}, ["3.11", "0.68.1"]),
        ({"a.py": b"xb.pyy"}, ["3.11", "0.68.1"]),
        (SOURCES, ["3.12", "0.68.1"]),
        (SOURCES, ["3.11", "0.68.2"]),
        (SOURCES, ["3.110.68.1"]),
    ],
)
def test_change_of_a_source_or_a_version_changes_the_digest(
    sources: dict[str, bytes], versions: list[str]
) -> None:
    before = machine_code.source_digest(SOURCES, ["3.11", "0.68.1"])
    reordered = dict(reversed(SOURCES.items()))
    assert machine_code.source_digest(reordered, ["3.11", "0.68.1"]) == before
    assert machine_code.source_digest(sources, versions) != before


def test_change_of_the_target_changes_the_digest() -> None:
    before = machine_code.target_digest(("x86_64", "znver3", "+avx2"))
    assert machine_code.target_digest(("x86_64", "znver4", "+avx2")) != before
    assert machine_code.target_digest(("x86_64", "znver3", "+avx2,+fma")) != before


def test_stamp_is_of_every_source_of_the_compiler_and_of_this_processor() -> None:
    assert machine_code.read_sources() == {
        path.name: path.read_bytes() for path in PACKAGE.glob("*.py")
    }
    versions = machine_code.compiler_versions()
    assert sys.version in versions
    assert numba.__version__ in versions
    described = processor.description()
    assert described is not None
    assert target()[: len(described)] == described
    digests = (
        machine_code.source_digest(machine_code.read_sources(), versions),
        machine_code.target_digest(target()),
    )
    assert stamp() == "-".join(digests)


@pytest.mark.parametrize("package", ["numba", "llvmlite", "numpy"])
def test_other_version_of_the_compiler_finds_nothing(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = machine_code._version
    monkeypatch.setattr(
        machine_code, "_version", lambda name: version(name) + ".dev0" * (name == package)
    )
    digest = machine_code.source_digest(
        machine_code.read_sources(), machine_code.compiler_versions()
    )
    assert digest != machine_code.current_source_digest()


# Keeping and reading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return machine_code.chosen_folder(tmp_path)


STAMPS = [f"{number:016x}-{number:016x}" for number in range(machine_code.STAMPS_MAX + 3)]


def test_what_is_kept_is_read_under_its_stamp_alone(folder: Path) -> None:
    assert machine_code.read(STAMPS[0], "a.b") is None
    assert machine_code.keep(STAMPS[0], "a.b", b"code") == folder / STAMPS[0]
    assert machine_code.read(STAMPS[0], "a.b") == b"code"
    assert machine_code.read(STAMPS[1], "a.b") is None
    assert machine_code.read(STAMPS[0], "a.c") is None


@pytest.mark.parametrize("length", range(36))
def test_file_that_is_cut_short_is_not_used(folder: Path, length: int) -> None:
    machine_code.keep(STAMPS[0], "a.b", b"code")
    file = folder / STAMPS[0] / "a.b"
    file.write_bytes(file.read_bytes()[:length])
    assert machine_code.read(STAMPS[0], "a.b") is None
    machine_code.keep(STAMPS[0], "a.b", b"code")
    assert machine_code.read(STAMPS[0], "a.b") == b"code"


def test_write_that_fails_midway_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code.keep(STAMPS[0], "a.b", b"code")

    def fail(handle: int, mode: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machine_code.os, "fchmod", fail)
    with pytest.raises(KeyboardInterrupt):
        machine_code.keep(STAMPS[0], "a.b", b"other")
    assert machine_code.read(STAMPS[0], "a.b") == b"code"
    assert [file.name for file in (folder / STAMPS[0]).iterdir()] == ["a.b"]


def test_many_that_write_the_same_never_leave_half_of_it(folder: Path) -> None:
    codes = [bytes([number]) * 100_000 for number in range(4)]
    machine_code.keep(STAMPS[0], "a.b", codes[0])
    seen: list[bytes | None] = []

    def write(code: bytes) -> None:
        for _ in range(20):
            machine_code.keep_in(folder, STAMPS[0], "a.b", code)
            seen.append(machine_code.read(STAMPS[0], "a.b"))

    threads = [threading.Thread(target=write, args=(code,)) for code in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80
    assert set(seen) <= set(codes)


def test_oldest_stamps_go_and_nothing_else(folder: Path) -> None:
    for age, name in enumerate(STAMPS):
        machine_code.keep(name, "a.b", b"code")
        os.utime(folder / name, (age, age))
    (folder / "kept.by.somebody").mkdir()
    machine_code.keep("f" * 16 + "-" + "f" * 16, "a.b", b"code")
    left = {path.name for path in folder.iterdir()}
    newest = STAMPS[1 - machine_code.STAMPS_MAX :]
    assert left == {*newest, "f" * 16 + "-" + "f" * 16, "kept.by.somebody"}


def test_nothing_is_kept_once_the_sources_are_others_than_those_that_were_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code.current_source_digest()
    monkeypatch.setattr(machine_code, "read_sources", lambda: SOURCES)
    assert machine_code.keep(STAMPS[0], "a.b", b"code") is None
    assert machine_code.read(STAMPS[0], "a.b") is None


def test_whether_anything_is_kept_is_known_without_numba(
    copied: Path, compiled: Compiled, tmp_path: Path
) -> None:
    ask = (
        "import sys; from isotherm.kernels.machine_code import is_anything_kept;"
        "print(is_anything_kept(), 'numba' in sys.modules)"
    )
    bare = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    assert run("-c", ask, path=copied, **bare)[0] == "False False\n"
    assert run("-c", ask, path=compiled.folder, **bare)[0] == "True False\n"


# ---- folders of other users


OTHERS = 0o002
GROUP = 0o020


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder, which NUMBA_CACHE_DIR names, two levels below one of this user."""
    above = tmp_path / "above" / "cache"
    above.mkdir(parents=True, mode=0o755)
    folder = machine_code.chosen_folder(above)
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([folder]))
    machine_code._warn_of_writers.cache_clear()
    assert machine_code.keep("stamp", "kernel", b"code") == folder / "stamp"
    assert machine_code.read("stamp", "kernel") == b"code"
    return folder


@pytest.mark.parametrize("bit", [OTHERS, GROUP])
@pytest.mark.parametrize("place", ["..", "../..", ".", "stamp", "stamp/kernel"])
def test_machine_code_that_others_may_have_written_is_not_used(
    chosen: Path, place: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = (chosen / place).resolve()
    path.chmod(path.stat().st_mode | bit)
    assert machine_code.read("stamp", "kernel") is None
    assert machine_code.read("stamp", "kernel") is None
    (record,) = caplog.records
    assert "other users can write" in record.getMessage()
    assert str(chosen) in record.getMessage()


@pytest.mark.parametrize("bit", [OTHERS, GROUP])
def test_machine_code_is_not_written_where_others_can_write(chosen: Path, bit: int) -> None:
    chosen.parent.chmod(0o755 | bit)
    assert machine_code.keep("other", "kernel", b"code") is None
    assert not (chosen / "other").exists()


def test_folder_below_one_with_the_sticky_bit_is_used(chosen: Path) -> None:
    """As /tmp: others create entries there, but cannot replace this one."""
    chosen.parent.chmod(0o1777)
    assert machine_code.read("stamp", "kernel") == b"code"
    # Whoever created the folder itself can do anything in it.
    chosen.chmod(0o1777)
    assert machine_code.read("stamp", "kernel") is None


def test_link_of_another_folder_that_others_can_write_to_is_not_followed(
    chosen: Path, tmp_path: Path
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    chosen.rename(open_to_all / "isotherm-kernels")
    chosen.symlink_to(open_to_all / "isotherm-kernels")
    assert machine_code.read("stamp", "kernel") == b"code"
    open_to_all.chmod(0o777)
    assert machine_code.read("stamp", "kernel") is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("place", ["..", ".", "stamp", "stamp/kernel"])
def test_machine_code_of_another_user_is_not_used(chosen: Path, place: str) -> None:
    os.chown(chosen / place, 12345, 12345)
    assert machine_code.read("stamp", "kernel") is None


def test_what_is_kept_is_not_for_others_to_write(chosen: Path) -> None:
    before = os.umask(0)
    try:
        assert machine_code.keep("open", "kernel", b"code") == chosen / "open"
    finally:
        os.umask(before)
    for path in (chosen / "open", chosen / "open" / "kernel"):
        assert not path.stat().st_mode & (OTHERS | GROUP)
