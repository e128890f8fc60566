"""What the answers about a cluster have in common: its last look, and an error if there is none or
it lacks what the address names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.storage_view.cluster_storage import ClusterStorage, TopicStorage
    from isotherm.storage_view.rows import Row

NOT_FOUND, UNAVAILABLE = 404, 503


def newest_storage(cluster: WatchedCluster) -> tuple[ClusterStorage, str | None]:
    """The last look at a cluster, and the reason if it cannot be read now. Raises HTTPException if
    it never could."""
    look = cluster.look()
    if look.content is None:
        raise HTTPException(UNAVAILABLE, look.error)
    return look.content, look.error


def named_topic(storage: ClusterStorage, request: Request) -> TopicStorage:
    """The topic in the request's path. Raises HTTPException if the cluster lacks it."""
    name = str(request.path_params["topic"])
    if name not in storage.topics:
        raise HTTPException(NOT_FOUND, f"no such topic: {name}")
    return storage.topics[name]


def reply(storage: ClusterStorage, error: str | None, content: Row) -> Response:
    """The content, with the time of the look and the reason if it is not of now."""
    return JSONResponse({"read_at_ms": storage.read_at_ms, "error": error, **content})
