"""Ack reply subjects, ack bodies, pull bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol import acks
from penstock.protocol.acks import AckBody, AckKind, AckSubject
from penstock.protocol.api import DecodeError, PullRequest

pytestmark = pytest.mark.feature("consumer.ack")

NAME = st.text(alphabet="abcXYZ-_0", min_size=1, max_size=8)
NUMBER = st.integers(min_value=0, max_value=2**63 - 1)


@given(NAME, NAME, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER)
def test_a_reply_subject_says_what_went_into_it(
    stream: str, consumer: str, delivered: int, sseq: int, cseq: int, ts: int, pending: int
) -> None:
    delivery = AckSubject(stream, consumer, delivered, sseq, cseq, ts, pending)
    assert acks.parse_reply(acks.build_reply(*delivery[:7])) == delivery
    second = delivery._replace(domain="hub", account_hash="AbC")
    assert acks.parse_reply(acks.build_reply_v2(second)) == second
    assert acks.parse_reply(acks.build_reply_v2(second) + ".rand.more") == second


def test_a_domain_of_underscore_is_none() -> None:
    subject = "$JS.ACK._.hash.S.C.1.2.3.4.5"
    assert acks.parse_reply(subject) == AckSubject("S", "C", 1, 2, 3, 4, 5, "", "hash")


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX.x",
        "$JS.ACK.S.C.1.2.3.4",  # 8 tokens
        "$JS.ACK.d.h.S.C.1.2.3.4",  # 10 tokens
        "$JS.ACK.S.C.1.x.3.4.5",
        "$JS.ACK.S.C.1.-2.3.4.5",
        "$JS.ACK.S.C.1.²2.3.4.5",
        "$JS.ACK.S.C.1..3.4.5",
    ],
)
def test_other_subjects_are_no_ack_subjects(subject: str) -> None:
    assert acks.parse_reply(subject) is None


@pytest.mark.parametrize(
    ("body", "parsed"),
    [
        (b"", AckBody(AckKind.ACK)),
        (b"+ACK", AckBody(AckKind.ACK)),
        (b"+OK", AckBody(AckKind.ACK)),
        (b"+WPI", AckBody(AckKind.PROGRESS)),
        (b"-NAK", AckBody(AckKind.NAK)),
        (b"-NAK 1.5s", AckBody(AckKind.NAK, delay_ns=1_500_000_000)),
        (b'-NAK {"delay": 20}', AckBody(AckKind.NAK, delay_ns=20)),
        (b'-NAK {"delay": 9223372036854775807}', AckBody(AckKind.NAK, delay_ns=acks.DELAY_MAX_NS)),
        (b'-NAK {"delay": 9223372036854775808}', AckBody(AckKind.NAK)),
        (b"-NAK 2562047h", AckBody(AckKind.NAK, delay_ns=acks.DELAY_MAX_NS)),
        (b"-NAK soon", AckBody(AckKind.NAK)),
        (b'-NAK {"delay": "x"}', AckBody(AckKind.NAK)),
        (b'-NAK {"delay": -5}', AckBody(AckKind.NAK)),
        (b'-NAK {"delay', AckBody(AckKind.NAK)),
        (b"-NAK -3s", AckBody(AckKind.NAK)),
        (b"+TERM", AckBody(AckKind.TERM)),
        (b"+TERM bad order", AckBody(AckKind.TERM, reason="bad order")),
        (b"+NXT", AckBody(AckKind.NEXT, pull=PullRequest(batch=1))),
        (b"+NXT 5", AckBody(AckKind.NEXT, pull=PullRequest(batch=5))),
        (b'+NXT {"batch":3,"no_wait":true}', AckBody(AckKind.NEXT, pull=PullRequest(batch=3, no_wait=True))),
        (b'+NXT {"batch', AckBody(AckKind.NEXT, pull=PullRequest(batch=1))),
        (b"hello", None),
        (b"+ACK and more", None),
    ],
)
def test_ack_bodies(body: bytes, parsed: AckBody | None) -> None:
    assert acks.parse_body(body) == parsed


def test_what_the_client_builds_the_server_reads() -> None:
    assert acks.parse_body(acks.build_nak(7)) == AckBody(AckKind.NAK, delay_ns=7)
    assert acks.parse_body(acks.build_nak()) == AckBody(AckKind.NAK)
    assert acks.parse_body(acks.build_term("why")) == AckBody(AckKind.TERM, reason="why")
    assert acks.parse_body(acks.build_term()) == AckBody(AckKind.TERM)


def test_pull_bodies_are_empty_a_number_or_json() -> None:
    assert acks.parse_pull(b"").batch == 1
    assert acks.parse_pull(b" 25 ").batch == 25
    assert acks.parse_pull(b"many").batch == 1
    assert acks.parse_pull(b'{"batch":10,"expires":5,"priority":3,"new_field":1}') == PullRequest(
        batch=10, expires=5, priority=3
    )
    with pytest.raises(DecodeError, match="batch"):
        acks.parse_pull(b'{"batch":"x"}')
