"""A metrics endpoint with a login, and counters that a test increments."""

from __future__ import annotations

import base64
import threading
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import make_wsgi_app

from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics
from isotherm.metrics.registry import Metrics

LOGIN = b"scraper:secret"
TOPIC = "orders"


class Quiet(WSGIRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class MetricsServer:
    def __init__(self) -> None:
        metrics = Metrics()
        self.topics = BrokerTopicMetrics(metrics)
        self.topics.follow(TOPIC, 0)
        exposition = make_wsgi_app(metrics.registry)
        self.asked = 0

        def app(environ: Any, start_response: Any) -> Any:
            self.asked += 1
            if environ.get("HTTP_AUTHORIZATION") != f"Basic {base64.b64encode(LOGIN).decode()}":
                start_response("401 Unauthorized", [])
                return [b""]
            return exposition(environ, start_response)

        self.server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
