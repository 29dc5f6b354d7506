"""Fuzzes the monitoring port: `python fuzz/fuzz_http.py -max_total_time=60`.

The first byte says whether an input is bytes as they come, a path with a query, or the headers of a request.
It goes over a socket: pages are served by uvicorn, in a thread of its own. Whatever it is: the answer is no
5xx but where a page says that something is not well, the connection ends, nothing is written to the log of
the loop, and pages are served afterwards.
"""

from __future__ import annotations

import logging
import select
import socket
import urllib.request

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from seeded import fuzz

from penstock.testing import EmbeddedServer, server
from tests.support.file_probes import PAGES, QUERIES, WEB_HEADERS

RAW, QUERY, HEADERS = range(3)
KINDS = 3
INPUTS_PER_CHECK = 200
ANSWER_S = 10.0
BEGIN_S = 0.05


def request(kind: int, rest: bytes) -> bytes:
    """What the socket sends."""
    if kind == RAW:
        return rest
    if kind == QUERY:
        return b"GET /" + rest.replace(b"\r\n", b"") + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    return b"GET /varz HTTP/1.1\r\n" + rest + b"\r\nConnection: close\r\n\r\n"


class Raised(logging.Handler):
    """Keeps what uvicorn says of exceptions: it answers 500 and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.reported: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.reported.append(logging.Formatter().format(record))


class Fuzzer:
    def __init__(self, running: EmbeddedServer) -> None:
        self.inputs = 0
        self.url: str = running.server.monitor.url  # type: ignore[union-attr]
        self.port: int = running.server.monitor.port  # type: ignore[union-attr]
        logging.disable(logging.NOTSET)
        logging.getLogger("penstock").setLevel(logging.CRITICAL)
        self.raised = Raised()
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addHandler(self.raised)
            logging.getLogger(name).propagate = False

    def __call__(self, data: bytes) -> None:
        if len(data) < 2:
            return
        self.inputs += 1
        answer = self.exchange(request(data[0] % KINDS, data[1:]))
        if self.raised.reported:
            raise AssertionError(f"answered {answer[:200]!r}: {self.raised.reported}")
        if answer.startswith(b"HTTP/1.1 5") and b'"status"' not in answer:
            raise AssertionError(f"answered {answer[:500]!r}")
        if self.inputs % INPUTS_PER_CHECK == 0:
            with urllib.request.urlopen(self.url + "/varz", timeout=ANSWER_S) as page:
                page.read()

    def exchange(self, sent: bytes) -> bytes:
        """The answer to these bytes, after which the client sends no more.

        The client closes its side only when an answer has begun, or none comes: uvicorn drops the connection
        at the end of the input, and with it the answers that are not made yet.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S) as sock:
            answer = bytearray()
            try:
                sock.sendall(sent)
                select.select([sock], [], [], BEGIN_S)
                sock.shutdown(socket.SHUT_WR)
                while data := sock.recv(1 << 16):
                    answer += data
            except (ConnectionResetError, BrokenPipeError):
                pass
            return bytes(answer)


SEEDS = [
    *(bytes([QUERY]) + page.removeprefix("/").encode() for page in PAGES),
    *(bytes([QUERY]) + b"connz?%s=1&subs=1&limit=5" % name.encode() for name in QUERIES),
    *(bytes([HEADERS]) + b"Host: x\r\n%s: 1" % name.encode() for name in WEB_HEADERS),
    bytes([RAW]) + b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\nGET /jsz HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes([RAW]) + b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    bytes([RAW]) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes([RAW]) + b"CONNECT x:1 HTTP/1.0\r\n\r\n",
]

if __name__ == "__main__":
    with server(jetstream=True, http_port=-1) as started:
        fuzz(SEEDS, Fuzzer(started), mutate)
