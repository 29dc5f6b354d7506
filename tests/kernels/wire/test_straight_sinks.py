"""Sinks that send straight into their socket, and what is left to their owners."""

from __future__ import annotations

import socket

from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.ticks import TickTrigger


class Straight:
    """A client whose sink sends straight into a socket pair."""

    def __init__(self) -> None:
        self.server, self.peer = socket.socketpair()
        self.server.setblocking(False)
        self.trigger = TickTrigger(lambda end: None, lambda: None)
        self.sink = ClientSink(self.trigger.dirty_sinks, self)
        self.sink.socket = self.server.fileno()
        self.rest = b""
        self.drained = 0

    def flush(self) -> bool:
        self.rest += self.sink.take()
        return False

    def on_drained(self) -> None:
        self.drained += 1

    def __enter__(self) -> Straight:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()
        self.peer.close()


def test_a_sink_with_a_socket_sends_by_itself_and_its_owner_hears_nothing() -> None:
    with Straight() as client:
        client.sink.when_drained(client.on_drained)
        for text in (b"one", b"two"):
            client.sink.write(text)
            client.trigger.flush()
            assert client.peer.recv(100) == text
        assert (client.rest, client.sink.sent_bytes, client.drained) == (b"", 6, 1)


def test_what_the_socket_does_not_take_is_its_owners_to_send_and_nothing_is_lost_between() -> None:
    with Straight() as client:
        data = b"".join(b"%07d\n" % i for i in range(500_000))
        client.sink.write(data)
        client.trigger.flush()
        sent = client.sink.sent_bytes
        assert 0 < sent < len(data)
        assert client.rest == data[sent:]
        client.server.close()
        got = bytearray()
        while chunk := client.peer.recv(1 << 20):
            got += chunk
        assert bytes(got) == data[:sent]


def test_a_socket_that_is_gone_and_a_closed_sink_are_left_to_the_owner() -> None:
    with Straight() as client:
        client.peer.close()
        client.sink.write(b"a")
        client.trigger.flush()
        assert client.rest == b"a"
    with Straight() as client:
        client.sink.write(b"a")
        client.sink.closed = True
        client.trigger.flush()
        assert (client.rest, client.sink.sent_bytes) == (b"a", 0)
