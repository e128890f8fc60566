"""A Kerberos realm: MIT's KDC on a local port, its principals and their keytabs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from isotherm.testing.local_servers import free_ports
from tests.support.conditions import wait_until

REALM = "ISOTHERM.TEST"
START_TIMEOUT_S = 300
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")
_PATHS = (*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/sbin")


class KerberosRealm:
    """Runs from construction to `close`.

    Skips the test where MIT's programs or the library are missing.
    """

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("gssapi", reason="pip install gssapi, beside libkrb5-dev")
        folder.mkdir()
        self._folder = folder
        (port,) = free_ports(1)
        self.krb5_conf = folder / "krb5.conf"
        self.krb5_conf.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\nrdns = false\n"
            "dns_canonicalize_hostname = false\nudp_preference_limit = 1\n"
            f"[realms]\n{REALM} = {{\n kdc = 127.0.0.1:{port}\n}}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[realms]\n{REALM} = {{\n database_name = {folder}/principal\n"
            f" key_stash_file = {folder}/stash\n acl_file = {folder}/acl\n"
            f" kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n}}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of the database")
        log = (folder / "kdc.log").open("wb")
        self._kdc = subprocess.Popen(
            [_program("krb5kdc"), "-n", "-r", REALM],
            env=self._environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self._await_start()

    def _await_start(self) -> None:
        path = self._folder / "kdc.log"

        def has_started() -> bool:
            assert self._kdc.poll() is None, path.read_bytes()
            return b"starting" in path.read_bytes()

        wait_until(has_started, path.read_text, timeout_s=START_TIMEOUT_S)

    def add(self, principal: str) -> Path:
        """Add a principal; return the keytab with its key."""
        key_table = self._folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {key_table} {principal}")
        return key_table

    def client_environment(self) -> Mapping[str, str]:
        """The environment of the broker and of C and Java clients, with no tickets yet."""
        return {
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5CCNAME": f"FILE:{self._folder}/tickets",
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.krb5_conf}",
        }

    def close(self) -> None:
        self._kdc.terminate()
        self._kdc.wait()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(self._folder / "kdc.conf"),
        }

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join(_PATHS))
    if found is None:
        pytest.skip(f"{name} is not installed (Debian, Ubuntu: krb5-kdc, krb5-admin-server)")
    return found
