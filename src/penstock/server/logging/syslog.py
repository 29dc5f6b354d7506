"""Log output to a syslog: the local one, or one given by URL.

Format as in the official server (Go's log/syslog): `<priority>time host tag[pid]: text` and a newline over
the network, without the host locally.

Rejected: logging.handlers.SysLogHandler. Over TCP it terminates messages with nothing or NUL, which a
    line-based syslog does not recognise, and importing it takes a tenth of the start-up time.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence

from penstock.server.config.option_checks import syslog_address

LOCAL_PATHS = ("/dev/log", "/var/run/syslog", "/var/run/log")
DAEMON = 3 << 3  # facility of local messages; 0 for remote ones, as in the official server
_SEVERITY = {"INF": 5, "DBG": 7, "WRN": 4, "ERR": 3, "FTL": 2, "TRC": 5}
_KINDS = {"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}
SEND_TIMEOUT_S = 0.2
PAUSE_S = 5.0


class SyslogWriter:
    """Sends each line separately. Called by a thread, because sending and connecting may block.

    A line that cannot be sent is sent once more over a new socket; then it is lost, and so are the lines of
    the next PAUSE_S.

    Args:
        url: URL of the syslog; "" = the local one.

    Raises:
        OSError: no syslog is reachable.
        ConfigError: invalid URL.
    """

    waits = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._tag = f"{os.path.basename(sys.argv[0]) or 'penstock'}[{os.getpid()}]"
        self._host = socket.gethostname()
        self._socket = self._connected()
        self._silent_until = 0.0  # in time.monotonic()

    def line(self, label: str, text: str, component: str = "") -> bytes:
        if not self.url:
            now = time.strftime("%b %e %H:%M:%S")
            line = f"<{DAEMON | _SEVERITY[label]}>{now} {self._tag}: {text}\n"
        else:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            now = f"{now[:-5]}Z" if now.endswith("+0000") else f"{now[:-2]}:{now[-2:]}"
            line = f"<{_SEVERITY[label]}>{now} {self._host} {self._tag}: {text}\n"
        return line.encode("utf-8", "replace")

    def write(self, lines: Sequence[bytes]) -> int:
        return sum(not self._send(line) for line in lines)

    def reopened(self) -> SyslogWriter:
        return SyslogWriter(self.url)

    def close(self) -> None:
        self._socket.close()

    def _send(self, line: bytes) -> bool:
        if time.monotonic() < self._silent_until:
            return False
        try:
            self._socket.sendall(line)
        except OSError:
            return self._send_again(line)
        return True

    def _send_again(self, line: bytes) -> bool:
        try:
            self._socket.close()
            self._socket = self._connected()
            self._socket.sendall(line)
        except OSError:
            self._silent_until = time.monotonic() + PAUSE_S
            return False
        return True

    def _connected(self) -> socket.socket:
        if self.url:
            scheme, address = syslog_address(self.url)
            if isinstance(address, tuple):
                family = socket.getaddrinfo(*address, type=_KINDS[scheme])[0][0]
                return _connect(family, _KINDS[scheme], address)
            return _connect_unix((address,))
        return _connect_unix(LOCAL_PATHS)


def _connect(family: int, kind: int, address: str | tuple[str, int]) -> socket.socket:
    connected = socket.socket(family, kind)
    try:
        connected.settimeout(SEND_TIMEOUT_S)
        connected.connect(address)
    except OSError:
        connected.close()
        raise
    return connected


def _connect_unix(paths: tuple[str, ...]) -> socket.socket:
    """Connects to the first of these sockets that accepts, stream or datagram."""
    failed = OSError("no syslog")
    for path in paths:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            try:
                return _connect(socket.AF_UNIX, kind, path)
            except OSError as error:
                failed = OSError(error.errno, error.strerror or "no syslog", path)
    raise failed
