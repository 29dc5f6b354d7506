"""Distinguished names as users write them; which user a certificate stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.auth.certificate_users import parse, user_of
from tests.support.certificates import client_certificate

pytestmark = pytest.mark.feature("security.tls-users")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("CN=joe,O=acme", [{("CN", "joe")}, {("O", "acme")}]),
        (" cn = joe , o=acme ", [{("CN", "joe")}, {("O", "acme")}]),
        ("DC=DEV+O=users,DC=org", [{("DC", "DEV"), ("O", "users")}, {("DC", "org")}]),
        (r"CN=Doe\, Joe,O=a\+b", [{("CN", "Doe, Joe")}, {("O", "a+b")}]),
        (r"CN=J\c3\bcrg", [{("CN", "Jürg")}]),
        (r"CN=joe\ ", [{("CN", "joe ")}]),
        ("CN=a=b", [{("CN", "a=b")}]),
        ("joe", None),
        ("", None),
        ("CN=joe,", None),
        ("=joe", None),
        ("CN=#0401", None),
        ("CN=joe\\", None),
        ("CN=joe\\x", None),
    ],
)
def test_distinguished_names(text: str, parts: list[set[tuple[str, str]]] | None) -> None:
    assert parse(text) == (None if parts is None else tuple(map(frozenset, parts)))


@given(st.text(alphabet="CN=joe,+\\ #ü0", max_size=30))
def test_any_text_is_a_name_or_none(text: str) -> None:
    parse(text)


TWO_UNITS = (("DC", "org"), ("CN", "joe"), ("OU", "b"), ("OU", "a"))
JOE = (("C", "US"), ("O", "acme"), ("CN", "joe"))


@pytest.mark.parametrize(
    ("subject", "emails", "dns", "uris", "users", "expected"),
    [
        (JOE, ["joe@x"], [], [], ["joe@x"], "joe@x"),
        (JOE, ["no@x", "joe@x"], ["host"], [], ["host", "joe@x"], "joe@x"),
        (JOE, ["no@x"], ["host"], ["spiffe://a/b"], ["spiffe://a/b"], "spiffe://a/b"),
        (JOE, [], ["host"], [], ["host"], "host"),
        (JOE, [], [], [], ["CN=joe,O=acme,C=US"], "CN=joe,O=acme,C=US"),
        (JOE, [], [], [], ["cn=joe, o=acme, c=US"], "cn=joe, o=acme, c=US"),
        (JOE, [], [], [], ["C=US,O=acme,CN=joe"], "C=US,O=acme,CN=joe"),
        (JOE, [], [], [], ["C=US,O=acme,CN=joe", "CN=joe,O=acme,C=US"], "CN=joe,O=acme,C=US"),
        (JOE, [], [], [], ["CN=joe,O=acme"], None),
        (JOE, [], [], [], ["CN=Joe,O=acme,C=US", "joe", "acme"], None),
        ((("DC", "org"), ("DC", "x"), ("CN", "joe")), [], [], [], ["CN=joe"], "CN=joe"),
        (TWO_UNITS, [], [], [], ["CN=joe,OU=b+OU=a"], "CN=joe,OU=b+OU=a"),
    ],
)  # fmt: skip
def test_the_user_of_a_certificate(
    subject: tuple[tuple[str, str], ...],
    emails: list[str],
    dns: list[str],
    uris: list[str],
    users: list[str],
    expected: str | None,
) -> None:
    made = client_certificate(subject, emails=emails, dns=dns, uris=uris)
    assert user_of(made.der, users) == expected
