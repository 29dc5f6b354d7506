"""Header blocks: parsing, building, and the cheap lookups, which must agree with the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MisuseError, ProtocolError
from penstock.protocol import headers as h

pytestmark = pytest.mark.feature("core.messages")

NAMES = st.sampled_from(["A", "a", "Nats-Msg-Id", "Nats-Msg-Id-2", "X", "KV-Operation"])
VALUES = st.text(
    alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12
).map(lambda text: text.strip(" \t"))
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


@given(PAIRS)
def test_what_was_built_is_parsed_again(pairs: list[tuple[str, str]]) -> None:
    block = h.build(pairs)
    assert h.parse(block) == (None, "", h.Headers(pairs))
    assert h.parse(block).headers.encode() == h.Headers(pairs).encode()


@given(PAIRS, NAMES)
def test_a_lookup_in_the_bytes_finds_the_parsers_first_value(pairs: list[tuple[str, str]], name: str) -> None:
    block = h.build(pairs)
    expected = h.parse(block).headers.get(name)
    assert h.value_of(block, name) == (None if expected is None else expected.encode())


@given(PAIRS, NAMES)
def test_removing_a_name_removes_all_its_values_and_nothing_else(
    pairs: list[tuple[str, str]], name: str
) -> None:
    left = h.without(h.build(pairs), name)
    expected = [pair for pair in pairs if pair[0] != name]
    assert left == (h.build(expected) if expected else b"")


@given(PAIRS, NAMES, VALUES)
def test_setting_a_name_leaves_one_value_of_it(pairs: list[tuple[str, str]], name: str, value: str) -> None:
    for block in (h.build(pairs), b"") if not pairs else (h.build(pairs),):
        parsed = h.parse(h.with_value(block, name, value)).headers
        assert parsed.get_all(name) == [value]
        assert [p for p in parsed.pairs() if p[0] != name] == [
            p for p in h.Headers(pairs).pairs() if p[0] != name
        ]


def test_names_keep_their_case_and_are_compared_with_it() -> None:
    block = b"NATS/1.0\r\nfoo: 1\r\nFOO: 2\r\n\r\n"
    assert h.parse(block).headers["FOO"] == "2"
    assert h.value_of(block, "FOO") == b"2"
    assert h.value_of(block, "Foo") is None


def test_the_status_line_has_a_code_and_a_text() -> None:
    assert h.parse(b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")[:2] == (100, "Idle Heartbeat")
    assert h.parse(b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n")[:2] == (503, "")
    assert h.status_of(b"NATS/1.0 408 Request Timeout\r\nA: 1\r\n\r\n") == (408, "Request Timeout")
    assert h.status_of(b"NATS/1.0\r\nA: 1\r\n\r\n") == (None, "")
    assert h.status_of(h.build([("A", "1")], status=404, description="No Messages")) == (404, "No Messages")


def test_a_value_may_follow_its_colon_at_once() -> None:
    assert h.value_of(b"NATS/1.0\r\nA:1\r\n\r\n", "A") == b"1"
    assert h.parse(b"NATS/1.0\r\nA:1\r\nB:  x y \r\n\r\n").headers == {"A": "1", "B": "x y"}


def test_bytes_that_are_no_utf8_survive() -> None:
    block = b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n"
    assert h.parse(block).headers.encode() == block


@pytest.mark.parametrize(
    "block", [b"", b"HTTP/1.1 200\r\n\r\n", b"NATS/1.0\r\nA: 1", b"NATS/1.0\r\nA\r\n\r\n"]
)
def test_what_is_no_header_block_is_a_protocol_error(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        h.parse(block)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "ü"])
def test_a_name_that_would_break_the_block_is_refused(name: str) -> None:
    with pytest.raises(MisuseError):
        h.Headers()[name] = "x"


def test_a_value_with_a_line_break_is_refused() -> None:
    with pytest.raises(MisuseError):
        h.Headers({"A": "x\r\nB: injected"})


def test_setting_replaces_and_adding_appends() -> None:
    headers = h.Headers({"A": ["1", "2"]})
    headers.add("A", "3")
    assert headers.get_all("A") == ["1", "2", "3"]
    headers["A"] = "4"
    assert headers.get_all("A") == ["4"]
    assert list(headers.pairs()) == [("A", "4")]
    del headers["A"]
    assert not headers
