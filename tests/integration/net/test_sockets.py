"""Listening sockets: both families of a wildcard, one port for all, nothing left open after an error."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from penstock.net import sockets


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for sock in made:
        sock.close()


def families(made: list[socket.socket]) -> list[int]:
    return [sock.family for sock in made]


needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_wildcard_listens_on_both_families_and_one_port(host: str, opened: list[socket.socket]) -> None:
    opened += sockets.listen(host, 0)
    assert sorted(families(opened)) == sorted([socket.AF_INET, socket.AF_INET6])
    (port,) = {sock.getsockname()[1] for sock in opened}
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, port)).close()


def test_an_address_listens_on_its_family_alone(opened: list[socket.socket]) -> None:
    opened += sockets.listen("127.0.0.1", 0)
    assert families(opened) == [socket.AF_INET]


@needs_ipv6
def test_a_peer_over_ipv4_has_an_ipv4_address(opened: list[socket.socket]) -> None:
    opened += sockets.listen("0.0.0.0", 0)
    port = opened[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, peer = opened[0].accept()
        accepted.close()
    assert peer[0] == "127.0.0.1"


def test_a_client_connects_before_anything_accepts(opened: list[socket.socket]) -> None:
    opened += sockets.listen("127.0.0.1", 0)
    port = opened[0].getsockname()[1]
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    for one in waiting:
        one.close()


@needs_ipv6
def test_a_port_taken_in_one_family_is_refused_and_nothing_stays_open(opened: list[socket.socket]) -> None:
    opened += sockets.listen("::1", 0)
    port = opened[0].getsockname()[1]
    with pytest.raises(OSError) as caught:
        sockets.listen("0.0.0.0", port)
    assert caught.value.errno == errno.EADDRINUSE
    socket.create_server(("127.0.0.1", port)).close()  # the IPv4 socket is gone


def test_an_error_reads_as_the_official_server_has_it() -> None:
    error = OSError(errno.EADDRINUSE, "Address already in use")
    text = sockets.failure("0.0.0.0", 4222, error)
    assert text.startswith(
        'Error listening on port: 0.0.0.0:4222, "listen tcp 0.0.0.0:4222: bind: address already in use"'
    )
    assert "[::]:4222" in sockets.failure("::", 4222, error)
