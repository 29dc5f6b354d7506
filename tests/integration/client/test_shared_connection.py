"""Threads of `penstock.sync` write requests to the socket themselves: frames stay whole and in order."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.sync
import penstock.testing
from penstock.errors import DisconnectedError
from penstock.kernels.wire.output import OutBuffer
from penstock.sync.shared_connection import SharedConnection
from penstock.sync.thread_session import FLUSH_BYTES, WAIT_BYTES, ThreadSession
from tests.support.certificates import make_certificates
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("client.sync")

INFO = b'INFO {"server_id":"S","version":"2.15.2","max_payload":1048576,"headers":true,"proto":1}\r\n'
SMALL_BUFFER = 8 * 1024
BODY = b"x" * 20_000  # several of the socket's buffers: no frame leaves by one system call
TURNS = 15
PUB = re.compile(rb"PUB (\S+)(?: (\S+))? (\d+)\r\n")


class SlowServer:
    """Reads little at once, answers PINGs and requests, and notes the subjects of what was published."""

    def __init__(self, receive_buffer: int) -> None:
        self.subjects: list[str] = []
        self.wrong: list[bytes] = []
        self.reads = threading.Event()  # cleared: it leaves what comes in the socket
        self.reads.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self._listener.settimeout(20)
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rb", buffering=SMALL_BUFFER) as lines:
            peer.sendall(INFO)
            sid = b""
            while line := lines.readline():
                self.reads.wait(20)
                if line.startswith(b"SUB "):
                    sid = line.split()[-1]
                elif line == b"PING\r\n":
                    peer.sendall(b"PONG\r\n")
                elif found := PUB.fullmatch(line):
                    body = lines.read(int(found[3]) + 2)
                    self.subjects.append(found[1].decode())
                    if body.strip(b"x") != b"\r\n":
                        self.wrong.append(body)
                    if found[2]:
                        peer.sendall(b"MSG %b %b 2\r\nok\r\n" % (found[2], sid))
                elif not line.startswith(b"CONNECT "):
                    self.wrong.append(line)
                    return

    def close(self) -> None:
        self._listener.close()
        self._thread.join(20)


@contextmanager
def slow_server(receive_buffer: int = 64 * 1024) -> Iterator[tuple[SlowServer, penstock.sync.Client]]:
    server = SlowServer(receive_buffer)

    async def small_socket() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, server.address)
        return sock

    try:
        with penstock.sync.connect("nats://slow", open_socket=small_socket, reconnect=False) as client:
            yield server, client
    finally:
        server.close()


def connection_of(client: penstock.sync.Client) -> SharedConnection:
    session = cast("ThreadSession", client._inner._session)
    assert session.connection is not None
    return cast("SharedConnection", session.connection)


def test_what_threads_write_to_a_full_socket_stays_whole_and_in_the_order_of_each() -> None:
    failed: list[BaseException] = []
    with slow_server() as (server, client):

        def work(thread: int) -> None:
            try:
                for number in range(TURNS):
                    client.publish(f"{thread}.{3 * number}", BODY)
                    client.publish(f"{thread}.{3 * number + 1}", b"")
                    assert client.request(f"{thread}.{3 * number + 2}", BODY, timeout=30).data == b"ok"
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failed and not server.wrong
    each: dict[str, list[int]] = defaultdict(list)
    for subject in server.subjects:
        thread_name, _, number = subject.partition(".")
        each[thread_name].append(int(number))
    assert dict(each) == {str(thread): list(range(3 * TURNS)) for thread in range(4)}


def test_what_the_socket_does_not_take_the_loop_writes() -> None:
    with slow_server(receive_buffer=2048) as (server, client):
        client.request("first", timeout=20)
        server.reads.clear()
        asking = threading.Thread(target=client.request, args=("a", b"x" * 32_000))
        asking.start()
        transport = connection_of(client)._transport
        assert transport is not None
        wait_until(lambda: transport.get_write_buffer_size() > 0, "the rest at the loop's thread")
        server.reads.set()
        asking.join(20)
        assert server.subjects == ["first", "a"] and not server.wrong


def test_what_a_thread_publishes_leaves_while_the_loop_is_busy() -> None:
    free = threading.Event()
    messages = 3 * FLUSH_BYTES // len(BODY)
    with slow_server() as (server, client):
        client.request("first", timeout=20)
        session = cast("ThreadSession", client._inner._session)
        try:
            session._thread.soon(free.wait, 20)
            for number in range(messages):
                client.publish(f"n.{number}", BODY)
            wait_until(lambda: len(server.subjects) > 1, "a message that the loop did not write")
        finally:
            free.set()
        client.flush(20)
        assert server.subjects == ["first", *(f"n.{number}" for number in range(messages))]
        assert not server.wrong


def test_a_thread_waits_where_the_socket_is_full() -> None:
    messages = 4 * WAIT_BYTES // len(BODY)
    with slow_server(receive_buffer=2048) as (server, client):
        client.request("first", timeout=20)
        server.reads.clear()

        def publish() -> None:
            for number in range(messages):
                client.publish(f"n.{number}", BODY)

        publishing = threading.Thread(target=publish)
        publishing.start()
        out = cast("ThreadSession", client._inner._session).out
        transport = connection_of(client)._transport
        assert transport is not None
        wait_until(lambda: transport.get_write_buffer_size() > WAIT_BYTES // 2, "much at the loop's thread")
        assert publishing.is_alive() and out.size < WAIT_BYTES + 2 * len(BODY)
        server.reads.set()
        publishing.join(20)
        client.flush(20)
        assert server.subjects == ["first", *(f"n.{number}" for number in range(messages))]


class Interrupted(Exception):
    """Raised by a signal handler."""


def test_what_a_signal_handler_raises_breaks_no_frame() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with slow_server(receive_buffer=2048) as (server, client):
            for number in range(300):
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4))
                        client.request(f"n.{number}", BODY[: random.randrange(3000)], timeout=20)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:  # once at most, also by the line before
                    interrupted += 1
            assert client.request("last", timeout=20).data == b"ok"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted and not server.wrong
    assert server.subjects[-1] == "last" and len(set(server.subjects)) == len(server.subjects)


@given(st.lists(st.binary(max_size=20_000), max_size=20))
def test_a_buffer_sends_what_a_socket_takes_and_keeps_the_rest(parts: list[bytes]) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        far.setblocking(False)
        out, came = OutBuffer(), bytearray()
        for part in parts:
            out.write(part)
            size = out.size
            assert out.send_to(near.fileno()) == (out.size == 0)
            assert out.size <= size
            if out.size:  # full
                came += far.recv(1 << 20)
        while not out.send_to(near.fileno()):
            came += far.recv(1 << 20)
        near.close()
        far.setblocking(True)
        while part := far.recv(1 << 20):
            came += part
        assert bytes(came) == b"".join(parts)
        out.write(b"more")
        assert not out.send_to(near.fileno()) and out.take() == b"more"


def test_a_lone_request_leaves_without_the_loop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.sync.connect(url) as answering, penstock.sync.connect(url) as client:
        answering.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
        answering.flush()
        assert client.request("echo", b"first").data == b"first"
        session = cast("ThreadSession", client._inner._session)
        monkeypatch.setattr(session, "schedule_flush", lambda: pytest.fail("the loop was woken"))
        assert client.request("echo", b"second", timeout=20).data == b"second"


def test_nothing_is_written_to_a_socket_that_is_closed(url: str) -> None:
    client = penstock.sync.connect(url, reconnect=False)
    connection = connection_of(client)
    client.close()
    assert not connection.flush_now()


def test_a_connection_that_was_left_is_the_loops_alone_before_its_socket_is_closed(url: str) -> None:
    with penstock.sync.connect(url) as client:
        session = cast("ThreadSession", client._inner._session)
        left = connection_of(client)
        assert left.flush_now()

        def leave() -> tuple[bool, bool]:
            session.force_reconnect()
            return left._transport is not None, left.flush_now()

        assert session._thread.call(leave) == (True, False)


def test_a_connection_that_breaks_fails_the_request_that_was_written_to_it() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = server.accept()
        with peer, peer.makefile("rb") as lines:
            peer.sendall(INFO)
            for line in lines:
                if line == b"PING\r\n":
                    peer.sendall(b"PONG\r\n")
                elif line.startswith(b"PUB "):
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"nats://127.0.0.1:{server.getsockname()[1]}"
    with server, penstock.sync.connect(url) as client, pytest.raises(DisconnectedError, match="'a' waited"):
        client.request("a", timeout=20)
    thread.join(20)


def test_over_tls_the_loop_writes(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with penstock.testing.server(tls=certificates.options()) as server:
        url = f"tls://127.0.0.1:{server.port}"
        with penstock.sync.connect(url, tls=certificates.client_context()) as client:
            assert not connection_of(client).flush_now()
            client.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
            assert client.request("echo", b"secret", timeout=20).data == b"secret"
