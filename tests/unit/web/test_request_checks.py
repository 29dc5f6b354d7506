"""What a request to the web page must show before a view sees it."""

from __future__ import annotations

import pytest

from penstock.errors import MisuseError
from penstock.web.request_checks import (
    checked_name,
    checked_subject,
    is_plain_host,
    is_same_origin,
    is_this_machine,
    natural_number,
)

pytestmark = pytest.mark.feature("monitoring.web")


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"host": "h:1"}, True),  # a program, or an old browser's GET
        ({"host": "h:1", "origin": "http://h:1"}, True),
        ({"host": "h:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "h:1", "origin": "http://h:2"}, False),
        ({"host": "h:1", "origin": "https://h:1"}, False),
        ({"host": "h:1", "origin": "null"}, False),
        ({"host": "h:1", "origin": "http://h:1.evil"}, False),
        ({"host": "h:1", "sec-fetch-site": "same-site"}, False),
        ({"host": "h:1", "sec-fetch-site": "cross-site", "origin": "http://h:1"}, False),
        ({"host": "h:1", "sec-fetch-site": "none"}, False),  # a link that was typed: nothing the page sends
    ],
)
def test_only_the_page_itself_passes(headers: dict[str, str], own: bool) -> None:
    assert is_same_origin(headers, "http") is own


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_this_machine(peer: str) -> None:
    assert is_this_machine(peer)


@pytest.mark.parametrize(
    "peer", ["", "10.0.0.1", "::ffff:10.0.0.1", "localhost", "fe80::1%eth0", "127.0.0.1.evil"]
)
def test_other_addresses_are_not(peer: str) -> None:
    assert not is_this_machine(peer)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8222", "localhost:1", "LOCALHOST", "[::1]:8222", "[::1]", "10.1.2.3"]
)
def test_hosts_that_no_dns_server_resolves(host: str) -> None:
    assert is_plain_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8222", "localhost.evil.example", "127.0.0.1.nip.example", "[", ":"],
)
def test_names_that_a_stranger_may_give_this_address(host: str) -> None:
    assert not is_plain_host(host)


@pytest.mark.parametrize(
    "name", ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\r\nPUB x 0", "a\x00", "x" * 256, "a\u202e"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match="no name of a stream"):
        checked_name(name, "stream")


def test_a_name_passes_unchanged() -> None:
    assert checked_name("ORDERS_2-ü", "stream") == "ORDERS_2-ü"


@pytest.mark.parametrize("subject", ["", "a b", "a..b", ".a", "a.", "a\r\nPUB x 0", "a\t", "x" * 5000])
def test_what_is_no_subject_is_refused(subject: str) -> None:
    with pytest.raises(MisuseError):
        checked_subject(subject, wildcards=True)


def test_only_a_filter_has_wildcards() -> None:
    assert checked_subject("a.*.>", wildcards=True) == "a.*.>"
    assert checked_subject("a.b", wildcards=False) == "a.b"
    with pytest.raises(MisuseError, match="no subject"):
        checked_subject("a.*", wildcards=False)


def test_numbers_have_defaults_and_limits() -> None:
    assert natural_number({}, "limit", 50, 100) == 50
    assert natural_number({"limit": "7"}, "limit", 50, 100) == 7
    assert natural_number({"limit": "999999999"}, "limit", 50, 100) == 100
    for text in ("-1", "1.5", "x", "9" * 19, "٣"):
        with pytest.raises(MisuseError, match="must be a number"):
            natural_number({"limit": text}, "limit", 50, 100)
