"""The arguments of `--add-scram`: how they are read, and that a refusal shows no password."""

from __future__ import annotations

import base64
import random

import pytest

from isotherm.broker.metadata.access.scram_credential import ScramCredential, ScramMechanism
from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.broker.server.authentication.scram import ScramExchange
from isotherm.broker.startup.scram_arguments import SALT_SIZE, parse_scram_arguments
from isotherm.errors import ConfigError

# RFC 7677, section 3.
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SALTED = "xKSVEDI6tPlSysH6mUQZOeeOp01r6B3fcJbodRPcYV0="  # `pencil`, 4096 iterations
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def parse(*arguments: str) -> list[UserScramCredentialRecord]:
    return parse_scram_arguments(arguments, random.Random(7))


@pytest.mark.parametrize(
    "options",
    [
        f"name=user,password=pencil,salt={SALT}",
        f'name="user",password="pencil",salt="{SALT}",iterations="4096"',
        f"salt={SALT.rstrip('=')},saltedpassword={SALTED},name=user",
    ],
)
def test_user_of_the_rfc_logs_in(options: str) -> None:
    (record,) = parse(f" SCRAM-SHA-256=[{options}] ")
    credential = ScramCredential(
        record.salt, record.stored_key, record.server_key, record.iterations
    )
    exchange = ScramExchange(
        ScramMechanism(record.mechanism),
        {record.name: credential}.get,
        list,
        new_nonce=lambda: SERVER_NONCE,
        secret=b"",
    )
    exchange.respond(CLIENT_FIRST)
    assert exchange.respond(CLIENT_FINAL) == SERVER_FINAL


def test_salt_and_iterations_have_defaults() -> None:
    first, second = parse(
        "SCRAM-SHA-256=[name=a,password=x]", "SCRAM-SHA-512=[name=b,password=x,iterations=8192]"
    )
    assert (first.name, first.mechanism, first.iterations, first.salt) == (
        "a",
        ScramMechanism.SCRAM_SHA_256,
        4096,
        random.Random(7).randbytes(SALT_SIZE),
    )
    assert (second.name, second.mechanism, second.iterations) == (
        "b",
        ScramMechanism.SCRAM_SHA_512,
        8192,
    )
    assert len(base64.b64encode(second.stored_key)) == 88


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("s3cret", "Failed to find equals sign in SCRAM argument"),
        ("SCRAM-MD5=[name=a,password=s3cret]", "The add-scram mechanism SCRAM-MD5 is not"),
        ("SCRAM-SHA-256=name=a,password=s3cret", r"configuration string to start with \["),
        ("SCRAM-SHA-256=[name=a,password=s3cret", r"configuration string to end with \]"),
        ("SCRAM-SHA-256=[name=a,password=half,s3cret]", "No equals sign found"),
        ("SCRAM-SHA-256=[password=s3cret]", "You must supply 'name' to add-scram"),
        ("SCRAM-SHA-256=[name=a]", "one of 'password' or 'saltedpassword'"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YQ==]", "You must supply 'salt' with"),
        ("SCRAM-SHA-256=[name=a,salt=YQ==,saltedpassword=s3cret!]", "decode given saltedpassword"),
        ("SCRAM-SHA-256=[name=a,salt=!,password=s3cret]", "Failed to decode given salt"),
        ("SCRAM-SHA-256=[name=a,password=s3cret,iterations=x]", "Failed to parse iterations"),
        ("SCRAM-SHA-256=[name=a,password=s3cret,iterations=4095]", "must be >= 4096"),
        ("SCRAM-SHA-256=[name=a,password=s3cret,iterations=16385]", "must be <= 16384"),
        ("SCRAM-SHA-256=[name=a,password=s3cret,pass=x]", "Unknown SCRAM configurations: pass"),
    ],
)
def test_what_cannot_be_read_is_refused_without_its_secret(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse(argument)
    assert "s3cret" not in str(refused.value)
