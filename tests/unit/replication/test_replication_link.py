"""The link between two servers: framing, greeting, features, every message there and back."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.raft.disk_identity import DiskIdentity
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame
from penstock.raft.raft_messages import (
    RULES,
    Append,
    Entry,
    EntryKind,
    Heartbeat,
    InstallSnapshot,
    Message,
    RaftSnapshot,
)
from penstock.replication.raftz import raft_status
from penstock.replication.replication_frames import (
    BUFFER_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    ReplicationKind,
    ReplicationParser,
    frame_bytes,
)
from penstock.replication.replication_link import (
    JOINED_BYTES_MAX,
    Greeting,
    LinkEvent,
    LinkOpened,
    LinkPhase,
    LinkRefused,
    ReplicationLink,
    greeting_of,
)
from penstock.replication.replication_messages import (
    GroupMail,
    decode_frame,
    decode_mail,
    encode_frames,
    encode_mail,
)
from tests.support.replication_nodes import NodesUnderTest

pytestmark = pytest.mark.feature("cluster.raft")

MEMBERS = Membership(("a.1", "b.1"), ("c.1",))
A = greeting_of(DiskIdentity("c", "a", "1", 3), "0.9")
B = greeting_of(DiskIdentity("c", "b", "1", 7), "0.9")


def message_of(kind: type[Any]) -> Message:
    """A message of a kind with a different value in every field."""
    values: dict[str, Any] = {"sender": "a.1", "to": "b.1", "term": 900}
    for number, one in enumerate(fields(kind), 11):
        values.setdefault(one.name, number)
        if one.type in ("bool", bool):
            values[one.name] = number % 2 == 0
    if kind is Append:
        values |= {"prev_index": 4, "prev_term": 5, "entries": entries(5, 6), "commit": 3}
    if kind is InstallSnapshot:
        values["snapshot"] = RaftSnapshot(9, 8, MEMBERS, b"state")
        values.pop("index", None)
    message: Message = kind(**values)
    return message


def entries(index: int, term: int) -> tuple[Entry, ...]:
    return (
        Entry(index, term, EntryKind.NOOP, b""),
        Entry(index + 1, term, EntryKind.MEMBERSHIP, MEMBERS.encode()),
        Entry(index + 2, term + 1, EntryKind.COMMANDS, b"\x00\xff" * 9),
    )


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_every_kind_of_message_comes_back_as_it_was(kind: type[Message]) -> None:
    frame = Frame("a.1", "b.1", 7, (("g", message_of(kind)), ("h", message_of(kind))), 2)
    [data] = encode_frames(frame)
    assert decode_frame(data, "a.1", "b.1") == frame


def test_a_large_frame_goes_in_parts_that_are_frames() -> None:
    messages = tuple((f"g{i}", message_of(Append)) for i in range(50))
    parts = list(encode_frames(Frame("a.1", "b.1", 7, messages), part_bytes=1000))
    assert len(parts) > 5
    found = [one for part in parts for one in decode_frame(part, "a.1", "b.1").messages]
    assert tuple(found) == messages


@pytest.mark.parametrize(
    "message",
    [
        Append("a", "b", 9, 4, 5, (Entry(6, 6, EntryKind.NOOP, b""),), 0),  # a gap
        Append("a", "b", 9, 4, 5, (Entry(5, 4, EntryKind.NOOP, b""),), 0),  # a term falls
        Append("a", "b", 9, 4, 5, (Entry(5, 10, EntryKind.NOOP, b""),), 0),  # a later term than the leader's
        Append("a", "b", 4, 4, 5, (), 0),
        Append("a", "b", 9, 4, 5, (Entry(5, 6, EntryKind.MEMBERSHIP, b"{}"),), 0),
        Append("a", "b", 9, 4, 5, (Entry(5, 6, EntryKind.MEMBERSHIP, b"[[],[]]"),), 0),
        InstallSnapshot("a", "b", 7, RaftSnapshot(9, 8, MEMBERS)),
        InstallSnapshot("a", "b", 9, RaftSnapshot(9, 8, Membership(("a", "a")))),
        Heartbeat("a", "b", -1, 0, 0, False),
        Heartbeat("a", "b", 1 << 63, 0, 0, False),
    ],
    ids=str,
)
def test_a_message_that_no_leader_sends_is_a_protocol_error(message: Message) -> None:
    [data] = encode_frames(Frame("a", "b", 1, (("g", message),)))
    with pytest.raises(ProtocolError):
        decode_frame(data, "a", "b")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        decode_frame(data, "a", "b")
    with suppress(ProtocolError):
        decode_mail(data)


# --- framing


def read_all(parser: ReplicationParser, pieces: Iterable[bytes]) -> list[tuple[ReplicationKind, bytes]]:
    found = []
    for piece in pieces:
        parser.feed(piece)
        while (frame := parser.read()) is not None:
            found.append((frame.kind, bytes(frame.payload)))
    return found


def test_frames_are_read_wherever_the_stream_is_split() -> None:
    frames = [
        (ReplicationKind.MESSAGES, b""),
        (ReplicationKind.MAIL, b"x" * 40),
        (ReplicationKind.REFUSAL, b"y"),
    ]
    data = b"".join(frame_bytes(*one) for one in frames)
    assert read_all(ReplicationParser(), [data]) == frames
    assert read_all(ReplicationParser(), [data[i : i + 1] for i in range(len(data))]) == frames
    for at in range(len(data)):
        assert read_all(ReplicationParser(), [data[:at], data[at:]]) == frames


def test_payloads_of_all_sizes_are_read_from_one_buffer_after_another() -> None:
    sizes = [70_000, 3, 70_001, BUFFER_BYTES_MAX + 5, 1, 70_000, 0]
    frames = [(ReplicationKind.MESSAGES, bytes([number]) * size) for number, size in enumerate(sizes)]
    data = b"".join(frame_bytes(*one) for one in frames)
    for step in (1000, 65_536, len(data)):
        parser = ReplicationParser()
        parser.widen()
        assert read_all(parser, [data[at : at + step] for at in range(0, len(data), step)]) == frames


def test_what_was_not_read_before_the_next_bytes_came_is_kept() -> None:
    data = b"".join(frame_bytes(ReplicationKind.MAIL, b"x" * size) for size in (3, 4, 5))
    parser = ReplicationParser()
    for piece in (data[:20], data[20:40], data[40:]):
        parser.feed(piece)
    assert read_all(parser, [b""]) == [(ReplicationKind.MAIL, b"x" * size) for size in (3, 4, 5)]


def test_each_flipped_bit_of_a_frame_is_found() -> None:
    data = frame_bytes(ReplicationKind.MESSAGES, b"payload")
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        parser = ReplicationParser()
        try:
            assert read_all(parser, [bytes(wrong)]) == [], f"bit {bit}"  # longer: more bytes are needed
        except ProtocolError:
            with pytest.raises(ProtocolError):
                parser.read()


def test_a_frame_above_the_limit_is_refused_before_it_is_there() -> None:
    parser = ReplicationParser()
    head = frame_bytes(ReplicationKind.MESSAGES, bytes(70_000))[:20]
    parser.feed(head)
    with pytest.raises(ProtocolError, match="a replication frame of 70000 bytes; the limit is 65536"):
        parser.read()
    parser = ReplicationParser()
    parser.widen()
    parser.feed(head)
    assert parser.read() is None
    too_large = (PAYLOAD_BYTES_MAX + 1).to_bytes(4, "little") + head[4:]
    parser = ReplicationParser()
    parser.widen()
    parser.feed(too_large)
    with pytest.raises(ProtocolError, match="the limit is"):
        parser.read()


# --- greeting


def events(link: ReplicationLink, data: bytes) -> list[LinkEvent]:
    return list(link.receive(data))


def open_links() -> tuple[ReplicationLink, ReplicationLink]:
    a, b = ReplicationLink(A, "b"), ReplicationLink(B)
    assert events(a, b.opening()) == [LinkOpened(B)]
    assert events(b, a.opening()) == [LinkOpened(A)]
    return a, b


def test_servers_greet_each_other_and_then_exchange_frames_and_mail() -> None:
    a, b = open_links()
    frame = Frame("a.1", "b.1", 3, (("g", message_of(Append)),))
    data = b"".join(a.frame_parts(frame)) + a.mail_bytes("g", b"block")
    assert events(b, data) == [frame, GroupMail("g", b"block")]
    assert b.replica_id == "a.1"
    link = ReplicationLink(B)
    whole = a.opening() + data
    found = [event for i in range(len(whole)) for event in link.receive(whole[i : i + 1])]
    assert found == [LinkOpened(A), frame, GroupMail("g", b"block")]


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (JOINED_BYTES_MAX - 200, 1), (JOINED_BYTES_MAX, 2)])
def test_a_frame_is_sent_with_its_head_unless_it_is_large(size: int, parts: int) -> None:
    a, b = open_links()
    entry = Entry(5, 6, EntryKind.COMMANDS, b"x" * size)
    append = Append("a.1", "b.1", 6, 4, 5, (entry,), 3)
    frame = Frame("a.1", "b.1", 3, (("g", append),))
    sent = list(a.frame_parts(frame))
    assert len(sent) == parts
    assert events(b, b"".join(sent)) == [frame]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"required": ("mail", "blocks-2", "x")},
            "server 'a' (0.9) requires blocks-2, x, which server 'b' (0.9)",
        ),
        ({"cluster": "other"}, "server 'a' is of cluster 'other', and this is 'c'"),
        ({"server": "b", "replica_id": "b.2"}, "both servers have the name 'b'"),
        ({"server": "z", "replica_id": "z.1"}, "dialled server 'a' and reached 'z'"),
        ({"replica_id": "q.1"}, "the member 'q.1' is not one of server 'a'"),
    ],
)
def test_a_greeting_that_does_not_fit_is_refused_and_both_sides_know_why(
    changes: dict[str, Any], text: str
) -> None:
    other = ReplicationLink(msgspec.structs.replace(A, **changes))
    link = ReplicationLink(B, expected="a")
    [refused] = events(link, other.opening())
    assert isinstance(refused, LinkRefused)
    assert text in refused.text
    assert (refused.by_peer, link.phase) == (False, LinkPhase.CLOSED)
    [heard] = events(other, refused.close_frame)
    assert heard == LinkRefused(refused.text, b"", by_peer=True)
    assert events(link, other.opening()) == []


@pytest.mark.parametrize(
    "data",
    [
        frame_bytes(ReplicationKind.MESSAGES, b""),
        frame_bytes(ReplicationKind.GREETING, b"{}"),
        frame_bytes(ReplicationKind.GREETING, b"[" * 9000),
        b"CONNECT {}\r\nPING\r\n_____",
    ],
)
def test_what_is_no_greeting_closes_the_link(data: bytes) -> None:
    link = ReplicationLink(B)
    [refused] = events(link, data)
    assert isinstance(refused, LinkRefused)


def test_a_second_greeting_and_an_unreadable_frame_close_an_open_link() -> None:
    for data in (ReplicationLink(A).opening(), frame_bytes(ReplicationKind.MESSAGES, b"\xff")):
        _, b = open_links()
        [refused] = events(b, data + data)
        assert isinstance(refused, LinkRefused)
    _, b = open_links()
    [heard] = events(b, frame_bytes(ReplicationKind.REFUSAL, b"?"))
    assert isinstance(heard, LinkRefused)
    assert heard.by_peer


def test_a_server_without_a_feature_is_not_sent_what_needs_it() -> None:
    older = Greeting(cluster="c", server="a", replica_id="a.1", boot=1)
    link = ReplicationLink(B)
    assert events(link, ReplicationLink(older).opening()) == [LinkOpened(older)]
    assert link.mail_bytes("g", b"x") == b""


def test_the_state_of_groups_has_the_fields_of_raftz() -> None:
    nodes = NodesUnderTest()
    nodes.start("g", "h")
    leader = nodes.leader()
    leader.group().propose(b"1")
    nodes.pass_time(300)
    shown = raft_status(leader.node, nodes.now, nodes.now, "g")
    assert list(shown) == ["g"]
    status = shown["g"]
    assert (status["state"], status["size"], status["quorum_needed"]) == ("LEADER", 3, 2)
    assert status["committed"] == status["applied"] == status["pindex"] == 2
    assert status["leader"] == status["voted_for"] == leader.node.name
    assert status["leader_since"].startswith("1970-01-01T00:00:0")
    assert {one["last_replicated_index"] for one in status["peers"].values()} == {2}
    assert {one["name"] for one in status["peers"].values()} == set("abc") - {leader.server}
    follower = nodes.followers()[0]
    assert raft_status(follower.node, nodes.now, nodes.now)["h"]["state"] in ("FOLLOWER", "LEADER")


def test_mail_comes_back_as_it_was() -> None:
    assert decode_mail(encode_mail("g", b"\x00")) == GroupMail("g", b"\x00")
