"""A stop of a broker that waits for the controllers of its cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from isotherm.testing.local_servers import free_ports

ISOTHERM = [sys.executable, "-m", "isotherm.cli.main"]
WAIT_S = 300


def test_start_that_waits_for_controllers_is_given_up(tmp_path: Path) -> None:
    """server.max.startup.time.ms is infinite by default."""
    port, controller = free_ports(2)
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path / 'data'}\n"
    )
    cluster_id = "SXNvdGhlcm1PcmFjbGUwMA"
    format_directory = ["storage", "format", "--cluster-id", cluster_id, "-c", str(config)]
    subprocess.run([*ISOTHERM, *format_directory], check=True, stdout=subprocess.DEVNULL)
    with subprocess.Popen(
        [*ISOTHERM, "serve", "--config", str(config)], stderr=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stderr is not None
        for line in broker.stderr:
            if "a controller does not answer" in line:
                break
        broker.send_signal(signal.SIGTERM)
        try:
            rest = broker.communicate(timeout=WAIT_S)[1]
        finally:
            broker.kill()
    assert broker.returncode == 0
    assert "start is aborted" in rest
