"""Redis Streams for comparison: its server as a process, and XADD over a raw socket."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from load import CHUNK_MESSAGES, LoadError, Wire, windowed
from servers import ServerProcess, free_port, last_lines

START_TIMEOUT_S = 20.0


def redis_binary() -> str | None:
    """`redis-server` from PATH, or None."""
    return shutil.which("redis-server")


@dataclass
class RedisServer(ServerProcess):
    """redis-server with an append-only file. fsync: `everysec` or `always`."""

    fsync: str = "everysec"
    options: list[str] = field(default_factory=list)

    def start(self) -> float:
        self.port = self.port or free_port()
        self.store_dir.mkdir(parents=True, exist_ok=True)
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.store_dir)]
        arguments += ["--appendonly", "yes", "--appendfsync", self.fsync, "--save", ""]
        started = time.perf_counter()
        log_path = self.store_dir.parent / f"{self.name}-{self.fsync}.log"
        with log_path.open("ab") as log:
            self.process = subprocess.Popen([*self.command, *arguments], stdout=log, stderr=log)
        while time.perf_counter() - started < START_TIMEOUT_S:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(5) == b"+PONG":
                        return time.perf_counter() - started
            except OSError:
                pass
            time.sleep(0.01)
        raise LoadError(f"redis-server did not answer:\n{last_lines(log_path)}")


def redis_server(folder: Path, fsync: str) -> RedisServer:
    binary = redis_binary()
    assert binary is not None
    return RedisServer("redis-server", [binary], folder / f"redis-{fsync}", fsync=fsync)


class RedisWire(Wire):
    """One raw connection; reads like Wire, without the NATS greeting."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tail = b""


def xadd_per_s(port: int, *, messages: int, window: int, size_bytes: int = 128) -> float:
    """XADD with a generated id, at most `window` without a response; responses per second."""
    connection = RedisWire(port)
    try:
        connection.sock.sendall(b"DEL bench\r\n")
        connection.read()
        # The subject is a field, as in an application that migrates.
        body = b"x" * size_bytes
        command = b"*7\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\ns\r\n$10\r\nbench.js.a\r\n$1\r\nd\r\n"
        command += b"$%d\r\n%s\r\n" % (size_bytes, body)
        return windowed(connection, [command * CHUNK_MESSAGES], messages, window, mark=b"$")
    finally:
        connection.close()
