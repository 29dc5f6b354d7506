"""A stream backed up from one server and restored into the other is the same stream.

All four directions hold the same messages (sequence, subject, header, payload, time), the same holes, and
consumers that go on where they were.
."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import KINDS, find_official_server, running_server
from tests.support.rawnats import RawNats
from tests.support.transfers import Backup, back_up, contents, restore, stored

pytestmark = [
    pytest.mark.feature("stream.backup-restore"),
    pytest.mark.official,
    pytest.mark.skipif(find_official_server() is None, reason="no official nats-server"),
]

MESSAGES = 400


def fill(nats: RawNats) -> None:
    """A stream with headers, large and small payloads, holes, and two consumers in the middle of it."""
    made = nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "max_age": 0})
    assert "error" not in made, made
    numbers = random.Random(7)
    for i in range(1, MESSAGES + 1):
        header = b"NATS/1.0\r\nX-Number: %d\r\n\r\n" % i if i % 3 == 0 else b""
        size = 0 if i % 5 == 0 else numbers.randrange(2000)
        payload = numbers.randbytes(size) if i % 2 else b"the same again, " * (size // 16)
        subject = b"s.%d" % (i % 17)
        nats.send(
            b"HPUB %s _A %d %d\r\n%s%s\r\n"
            % (subject, len(header), len(header) + len(payload), header, payload)
            if header
            else b"PUB %s _A %d\r\n%s\r\n" % (subject, len(payload), payload)
        )
    stored(nats, "S", MESSAGES)
    for seq in (1, 2, 50, 51, 52, MESSAGES):
        assert nats.request("$JS.API.STREAM.MSG.DELETE.S", {"seq": seq})["success"]
    # An ephemeral consumer goes after 5 s without a client by default, and busy machines need longer.
    for name, suffix, config in (
        ("WORK", ".s.3", {"durable_name": "WORK", "filter_subject": "s.3"}),
        ("PLAIN", "", {"inactive_threshold": 120 * 10**9}),
    ):
        body = {"stream_name": "S", "config": {"name": name, "ack_policy": "explicit", **config}}
        assert "error" not in nats.request(f"$JS.API.CONSUMER.CREATE.S.{name}{suffix}", body)
    fetch(nats, "WORK", 5, acked=(0, 2))


def fetch(nats: RawNats, consumer: str, count: int, acked: tuple[int, ...] = ()) -> list[tuple[bytes, bytes]]:
    """The next messages of a consumer: (subject, payload); the ones at the positions `acked` are."""
    nats.send(b"SUB _PULL r3\r\n")
    nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}", b'{"batch":%d,"no_wait":true}' % count, "_PULL")
    got = []
    while len(got) < count:
        message = nats.message()
        if message.sid != b"r3":
            continue
        if not message.reply:
            break
        got.append(message)
    nats.send(b"UNSUB r3\r\n")
    for at in acked:
        nats.publish(got[at].reply.decode(), b"+ACK")
    nats.flush()
    return [(message.subject, message.payload) for message in got]


def facts(nats: RawNats) -> dict[str, Any]:
    state = nats.request("$JS.API.STREAM.INFO.S", {"deleted_details": True})["state"]
    names = ("messages", "first_seq", "last_seq", "num_subjects", "deleted", "consumer_count")
    found: dict[str, Any] = {name: state.get(name) for name in names}
    found["contents"] = contents(nats, "S", state)
    for consumer in ("WORK", "PLAIN"):
        info = nats.request(f"$JS.API.CONSUMER.INFO.S.{consumer}")
        found[consumer] = {
            name: info[name] for name in ("num_ack_pending", "num_pending", "num_redelivered")
        } | {
            name: (info[name]["consumer_seq"], info[name]["stream_seq"])
            for name in ("delivered", "ack_floor")
        }
    return found


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_a_backup_of_one_server_restores_into_the_other(source: str, target: str, tmp_path: Path) -> None:
    with running_server(source, tmp_path / "from") as server:
        nats = RawNats(server.port)
        fill(nats)
        before = facts(nats)
        backup = back_up(nats, "S", chunk_size=4096)
        assert before == facts(nats)
        nats.close()
    assert backup.end == b"NATS/1.0 204\r\n\r\n"
    assert backup.replies and all(reply.startswith(b"$JS.SNAPSHOT.ACK.S.") for reply in backup.replies)
    assert [reply.split(b".")[-2:] for reply in backup.replies[:2]] == [[b"4096", b"1"], [b"4096", b"2"]]
    with running_server(target, tmp_path / "to") as server:
        nats = RawNats(server.port)
        answer = restore(nats, backup)
        assert "error" not in answer, answer
        assert answer["state"]["messages"] == before["messages"]
        assert facts(nats) == before
        server.stop()
        server.start()
        nats = RawNats(server.port)
        assert facts(nats) == before
        assert nats.request("s.1", "next")["seq"] == MESSAGES + 1
        assert len(fetch(nats, "WORK", 100)) == 24 - 5  # what is pending waits for its time
        nats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_chunk_leaves_before_the_receiver_subscribed(kind: str, tmp_path: Path) -> None:
    """As the `nats` command line does it: its inbox for all answers covers the deliver subject by a wildcard,
    and it subscribes to that subject when it has the response."""
    with running_server(kind, tmp_path / "from") as server:
        nats = RawNats(server.port)
        fill(nats)
        nats.subscribe("_INBOX.me.*", 1)
        nats.publish("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"_INBOX.me.snap"}', "_INBOX.me.answer")
        assert b'"state"' in nats.message().payload
        nats.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            nats.message()
        nats.sock.settimeout(10)
        nats.send(b"UNSUB 1\r\n")
        nats.subscribe("_INBOX.me.snap", 2)
        data = b""
        while True:
            message = nats.message()
            if message.reply:
                nats.publish(message.reply.decode())
            elif not message.payload:
                break
            data += message.payload
        assert data.startswith(b"\xff\x06\x00\x00S2sTwO")
        nats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_without_consumers_has_none(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path / "from") as server:
        nats = RawNats(server.port)
        fill(nats)
        backup = back_up(nats, "S", no_consumers=True, jsck=True, window_size=1, chunk_size=1)
        assert nats.request("$JS.API.STREAM.DELETE.S")["success"]
        assert "error" not in restore(nats, backup)
        assert nats.request("$JS.API.CONSUMER.NAMES.S")["total"] == 0
        nats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_whole_archive_leaves_no_stream(kind: str, tmp_path: Path) -> None:
    """Error texts differ between the servers, codes do not."""
    with running_server(kind, tmp_path / "from") as server:
        nats = RawNats(server.port)
        fill(nats)
        backup = back_up(nats, "S")
        taken = nats.request("$JS.API.STREAM.RESTORE.S", {"config": backup.config, "state": backup.state})
        assert taken["error"]["err_code"] == 10130
        assert nats.request("$JS.API.STREAM.DELETE.S")["success"]
        data = backup.data
        broken = data[:20_000] + bytes((data[20_000] ^ 1,)) + data[20_001:]
        for bad in (b"x" * 5000, broken):
            answer = restore(nats, Backup(backup.config, backup.state, bad, b"", []))
            assert answer["error"]["err_code"] == 10062, answer
            if kind == "penstock":  # the official server keeps what came until the error
                assert nats.request("$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10059
            else:
                nats.request("$JS.API.STREAM.DELETE.S")
        assert "error" not in restore(nats, backup)
        nats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_can_not_be_served_are_refused_alike(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path / "from") as server:
        nats = RawNats(server.port)
        assert "error" not in nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})

        def refused(subject: str, body: Any = None) -> int:
            answer = nats.request(f"$JS.API.{subject}", body)
            code: int = answer["error"]["err_code"]
            return code

        assert refused("STREAM.SNAPSHOT.NONE", {"deliver_subject": "x"}) == 10059
        assert refused("STREAM.SNAPSHOT.S") == 10003
        assert refused("STREAM.SNAPSHOT.S", {"deliver_subject": ""}) == 10015
        assert refused("STREAM.SNAPSHOT.S", {"deliver_subject": "a.*"}) == 10015
        assert refused("STREAM.SNAPSHOT.S", {"deliver_subject": 1}) == 10025
        assert refused("STREAM.RESTORE.S") == 10003
        assert refused("STREAM.RESTORE.S", {"config": {"name": "T"}}) == 10056
        assert refused("STREAM.RESTORE.T", {"config": {"name": "T", "subjects": ["a..b"]}}) == 10052
        if kind == "penstock":  # the official server finds out when everything has been sent
            assert refused("STREAM.RESTORE.T", {"config": {"name": "T", "subjects": ["s.a"]}}) == 10065
        assert refused("STREAM.RESTORE.S", {"config": {"name": "S", "subjects": ["t"]}}) == 10130
        nats.close()
