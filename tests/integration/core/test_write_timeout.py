"""`write_timeout`: what becomes of a receiver that takes some of what waits for it, but not all."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.integration.core.test_stalled import slow_consumers, slow_reasons
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, free_port
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("core.write-deadline", "core.slow-consumers")

CONF = """
    write_deadline: "400ms", max_pending: 512MB, no_fast_producer_stall: true
    http: 127.0.0.1:%d
    %s
"""
MESSAGE_BYTES = 64 * 1024
MESSAGES = 640  # 40 MiB
READ_BYTES = 640 * 1024
READ_INTERVAL_S = 0.05  # about 12 MiB/s: something is taken all the time, and never all
ENDS_WITHIN_S = 30.0


class SlowReader:
    def __init__(self, port: int) -> None:
        self.client = RawNats(port, timeout_s=20.0)
        self.client.subscribe("slow", 1)
        self.client.flush()
        self.taken = 0

    def read_a_little(self) -> bool:
        """False when the server has closed."""
        end = self.taken + READ_BYTES
        try:
            while self.taken < end and (data := self.client.sock.recv(READ_BYTES)):
                self.taken += len(data)
        except ConnectionResetError:
            return False
        time.sleep(READ_INTERVAL_S)
        return self.taken >= end

    def read_all(self, size: int) -> int:
        self.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        while self.taken < size and (data := self.client.sock.recv(1 << 20)):
            self.taken += len(data)
        return self.taken


def fill(port: int) -> None:
    publisher = RawNats(port, timeout_s=20.0)
    for _ in range(MESSAGES):
        publisher.publish("slow", b"x" * MESSAGE_BYTES)
    publisher.flush()
    publisher.close()


@pytest.mark.parametrize("policy", ["", "write_timeout: default", "write_timeout: close"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_has_not_taken_all_by_the_deadline_is_closed(kind: str, policy: str, tmp_path: Path) -> None:
    http_port = free_port()
    with running_conf(kind, CONF % (http_port, policy), tmp_path) as port:
        reader = SlowReader(port)
        fill(port)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not slow_consumers(http_port):
            assert reader.read_a_little() or slow_consumers(http_port)
            assert time.monotonic() < deadline
        assert slow_reasons(http_port) == {"Slow Consumer (Write Deadline)": 1}
        reader.client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_with_retry_who_takes_something_stays_and_is_counted(kind: str, tmp_path: Path) -> None:
    http_port = free_port()
    with running_conf(kind, CONF % (http_port, "write_timeout: retry"), tmp_path) as port:
        reader = SlowReader(port)
        fill(port)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while slow_consumers(http_port) < 2:
            assert reader.read_a_little()
            assert time.monotonic() < deadline
        size = MESSAGES * (MESSAGE_BYTES + len(b"MSG slow 1 65536\r\n\r\n"))
        assert reader.read_all(size) == size
        assert slow_reasons(http_port) == {}
        reader.client.close()
