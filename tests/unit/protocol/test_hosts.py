"""Addresses that other servers announce."""

from __future__ import annotations

import socket

import pytest

from penstock.cluster.gateways import GatewayRemote
from penstock.cluster.peer_link import Address
from penstock.protocol.hosts import announced_address, host_checked


def test_announced_addresses_are_read() -> None:
    assert announced_address("h:1") == ("h", 1)
    assert announced_address("[::1]:65535") == ("::1", 65535)


@pytest.mark.parametrize(
    "text", ["", "h", ":1", "h:", "h:x", "h:-1", "h:65536", "h:\u00b2", "h:\u0663", "h:" + "1" * 4301]
)
def test_other_texts_are_no_addresses(text: str) -> None:
    assert announced_address(text) is None


def test_a_gateway_keeps_the_addresses_among_what_its_cluster_announces() -> None:
    remote = GatewayRemote("A", ())
    remote.note_urls(["h:" + "1" * 4301, "h:0", "h:x", "[::1]:2"])
    assert remote.addresses == [Address("::1", 2)]


@pytest.mark.parametrize("host", ["a..b", "a" * 64, ".", "a\0b"])
def test_a_text_that_is_no_host_name_fails_as_a_host_that_is_not_there(host: str) -> None:
    with pytest.raises(OSError, match="is no host name"), host_checked(host):
        socket.getaddrinfo(host, 1)
