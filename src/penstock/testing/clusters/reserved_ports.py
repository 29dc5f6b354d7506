"""Ports for servers that start again on the same port.

A port that the system chose is free for others as soon as its server is killed: any outgoing connection may
get it. The ports here are below those of outgoing connections, and a locked file keeps each block of them to
one process.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from penstock.errors import ServerError

PORTS = (12_000, 32_000)
BLOCK_PORTS = 100


@functools.cache
def _own_ports() -> tuple[Iterator[int], IO[bytes]]:
    """The ports of this process, and the locked file that keeps other processes from them."""
    folder = Path(tempfile.gettempdir()) / "penstock-test-ports"
    folder.mkdir(exist_ok=True)
    blocks = list(range(*PORTS, BLOCK_PORTS))
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        lock = (folder / str(first)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return itertools.cycle(range(first, first + BLOCK_PORTS)), lock
    raise ServerError(f"every block of ports is locked by another process, see {folder}")


def free_port() -> int:
    """A free TCP port, which this function returns again only after many others.

    Raises:
        ServerError: none is free.
    """
    ports, _ = _own_ports()
    for port in itertools.islice(ports, BLOCK_PORTS):
        with socket.socket() as probe:
            # As servers do: closed connections of the last server on this port do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError(f"none of the {BLOCK_PORTS} ports of this process is free")
