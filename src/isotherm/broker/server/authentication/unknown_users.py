"""The secret from which SCRAM derives what it shows of users that do not exist.

A client that names a user gets a salt before it proves anything. A salt that changed at a restart,
or that differed between two brokers, would tell that the user is unknown. So the secret is one of
the cluster: all brokers read it from the metadata, where a restart finds it again. It is the keys
of the credential of a user whose salted password is random and kept nowhere. The record is Kafka's,
so its controllers keep it too, and no API shows the keys of a credential: those who know the
cluster id and passwords of users learn nothing of it. See docs/decisions/0210.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from isotherm.broker.metadata.access.scram_changes import Refused, ScramUpsertion
from isotherm.broker.metadata.access.scram_credential import ITERATIONS_MIN, ScramMechanism
from isotherm.broker.metadata.image import ScramUser
from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of

logger = logging.getLogger(__name__)

# Nobody can log in as this user. Its name says whose it is, because tools of Kafka list it.
SECRET_USER = "__isotherm_unknown_users"  # noqa: S105
_KEY = ScramUser(ScramMechanism.SCRAM_SHA_512, SECRET_USER)
_SALT_SIZE = 32
_SALTED_PASSWORD_SIZE = 64


def secret_of(credentials: Mapping[ScramUser, UserScramCredentialRecord]) -> bytes | None:
    """The cluster's secret; None before it is recorded."""
    record = credentials.get(_KEY)
    return None if record is None else record.stored_key + record.server_key


def new_secret() -> ScramUpsertion:
    return ScramUpsertion(
        SECRET_USER,
        _KEY.mechanism,
        ITERATIONS_MIN,
        secrets.token_bytes(_SALT_SIZE),
        secrets.token_bytes(_SALTED_PASSWORD_SIZE),
    )


def recording_request(upsertion: ScramUpsertion) -> Any:
    """The request by which a member of a cluster asks the controller to record it."""
    return entity_of(
        request_class(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0),
        {"deletions": (), "upsertions": [upsertion._asdict()]},
    )


async def keep_secret(
    credentials: Mapping[ScramUser, UserScramCredentialRecord],
    record: Callable[[ScramUpsertion], Awaitable[Refused | None]],
) -> None:
    """Record a secret, if the cluster has none. `record` raises IsothermError if the controller
    does not answer.

    Two brokers may record theirs at the same time: all use the later one. Without one each start
    has its own, which is logged.
    """
    if secret_of(credentials) is not None:
        return
    try:
        refused = await record(new_secret())
    except IsothermError as error:
        reason = str(error)
    else:
        if refused is None:
            return
        reason = f"{code_name(refused.code)} {refused.message}".strip()
    logger.warning(
        "clients can find out which SCRAM users exist by a restart: the cluster's secret is not"
        " recorded user=%s reason='%s' hint='the next start tries again'",
        SECRET_USER,
        reason,
    )
