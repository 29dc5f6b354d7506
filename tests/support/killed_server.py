"""A served process that tests kill, again and again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.rawnats import RawNats


class Served:
    """`penstock serve` in a process of its own on one port and one store."""

    def __init__(self, store_dir: Path, settings: str = "") -> None:
        self.store_dir = store_dir
        self.config = store_dir.parent / "nats.conf"
        self.config.write_text(f"jetstream {{ {settings} }}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock", "serve", "-a", "127.0.0.1", "-p", str(self.port)]
        command += ["-c", str(self.config)]
        with (self.store_dir.parent / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-js", "-sd", str(self.store_dir)], stderr=log, stdout=log
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                RawNats(self.port).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.store_dir.parent / "server.log").read_text()
                time.sleep(0.01)
        raise AssertionError("the server did not come back within 30 s")

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
