"""Notifications to systemd: the server is ready, reloads, stops, and its event loop still runs.

The protocol is that of sd_notify(3): datagrams of `NAME=value` lines to the socket that the environment
names. A unit of `Type=notify` counts as started with READY=1, when clients can connect, so that units after
it find a server that answers. With `WatchdogSec=`, systemd restarts a server whose event loop stopped: the
pings come from the loop itself.

Invariant: notifying never fails the server. A manager that does not take a datagram misses it.

Rejected: the packages that wrap libsystemd (a compiled dependency for twenty lines).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import MutableMapping
from typing import Self


class ServiceNotifier:
    """The connection to the service manager.

    Args:
        address: of its socket; a leading NUL is an abstract one.
        watchdog_s: the period within which it wants a ping; 0 = none.
    """

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int) -> Self | None:
        """The notifier of this process; None without a manager. Removes the variables, which child processes
        must not use. pid: of this process; a watchdog of another one is ignored."""
        address = environment.pop("NOTIFY_SOCKET", "")
        period, owner = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):  # none, or a VSOCK of a virtual machine's host
            return None
        is_watched = period.isdigit() and owner in ("", str(pid))
        path = "\0" + address[1:] if address.startswith("@") else address
        return cls(path, int(period) / 1e6 if is_watched else 0.0)

    def ready(self, status: str) -> None:
        """Clients can connect, or a reload ended. status: one line for `systemctl status`."""
        self._send("READY=1", f"STATUS={status}")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sends pings from the loop, twice in the watchdog's period, until stopping()."""
        if self._watchdog_s:
            self._send("WATCHDOG=1")
            self._timer = loop.call_later(self._watchdog_s / 2, self.watch, loop)

    def reloading(self) -> None:
        """A reload begins; ready() ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def leaving(self, status: str) -> None:
        """The server ends its work, slowly: the watchdog goes on."""
        self._send("STOPPING=1", f"STATUS={status}")

    def close(self) -> None:
        """Ends the pings, and closes the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()

    def _send(self, *fields: str) -> None:
        with contextlib.suppress(OSError):  # see the invariant
            self._socket.sendto("\n".join(fields).encode(), self._address)
