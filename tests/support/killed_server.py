"""A served process that tests kill, again and again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.rawnats import RawMessage, RawNats

READ_BATCH = 500


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


def stored_messages(port: int, stream: str) -> Iterator[tuple[int, RawMessage]]:
    """(sequence, message) of all there are."""
    connection = RawNats(port)
    body = {"stream_name": stream, "config": {"ack_policy": "none", "mem_storage": True}}
    name = connection.request(f"$JS.API.CONSUMER.CREATE.{stream}", body)["name"]
    next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
    connection.subscribe("_INBOX.read", 1)
    found = True
    while found:
        connection.publish(next_subject, b'{"batch":%d,"no_wait":true}' % READ_BATCH, "_INBOX.read")
        found = False
        for _ in range(READ_BATCH):
            message = connection.message()
            if not message.reply.startswith(b"$JS.ACK."):
                break
            found = True
            yield int(message.reply.split(b".")[5]), message
    connection.close()
