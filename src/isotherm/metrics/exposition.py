"""Metrics over HTTP, in Prometheus' text format: GET /metrics."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from isotherm.metrics.registry import Metrics


class MetricsServer:
    """Serves from its construction until `close`, from threads of its own."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """An empty host is every interface, port 0 any free port. OSError when it is taken."""
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, host, registry=metrics.registry)

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
