"""Backing up and restoring a stream over a raw connection, as `nats stream backup` and `restore` do it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.support.rawnats import RawNats
from tests.support.wire import wait_until

DELIVER = "_SNAP.test"
CHUNK = 100_000


class Backup(NamedTuple):
    """config, state: of the response. data: the archive. end: header of the last message."""

    config: dict[str, Any]
    state: dict[str, Any]
    data: bytes
    end: bytes
    replies: list[bytes]


def back_up(nats: RawNats, stream: str, **settings: Any) -> Backup:
    """The whole archive of a stream, each chunk acked."""
    nats.subscribe(DELIVER, 91)
    response = nats.request(f"$JS.API.STREAM.SNAPSHOT.{stream}", {"deliver_subject": DELIVER, **settings})
    assert "error" not in response, response
    data, replies = bytearray(), []
    while True:
        message = nats.message()
        if not message.payload:
            nats.send(b"UNSUB 91\r\n")
            return Backup(response["config"], response["state"], bytes(data), message.header, replies)
        data += message.payload
        if message.reply:
            replies.append(message.reply)
            nats.publish(message.reply.decode())


def restore(nats: RawNats, backup: Backup, name: str = "", **changes: Any) -> dict[str, Any]:
    """Restores a backup; the answer to its end, or to the chunk that was refused."""
    config = {**backup.config, **changes}
    name = name or config["name"]
    config["name"] = name
    begun = nats.request(f"$JS.API.STREAM.RESTORE.{name}", {"config": config, "state": backup.state})
    assert "error" not in begun, begun
    for at in range(0, len(backup.data), CHUNK):
        answer = send_chunk(nats, begun["deliver_subject"], backup.data[at : at + CHUNK])
        if answer:
            return json.loads(answer)  # type: ignore[no-any-return]
    return json.loads(send_chunk(nats, begun["deliver_subject"], b""))  # type: ignore[no-any-return]


def send_chunk(nats: RawNats, subject: str, chunk: bytes) -> bytes:
    """One chunk, and its answer."""
    nats.send(b"SUB _R.chunk r2\r\nUNSUB r2 1\r\n")
    nats.publish(subject, chunk, "_R.chunk")
    while True:
        message = nats.message()
        if message.sid == b"r2":
            return message.payload


def stored(nats: RawNats, stream: str, last_seq: int) -> None:
    """Returns when a stream has stored this sequence.

    The PONG after a publish doesn't say so: the official server queues messages for the stream.
    """
    subject = f"$JS.API.STREAM.INFO.{stream}"
    wait_until(lambda: bool(nats.request(subject)["state"]["last_seq"] == last_seq), f"{stream} to be stored")


def contents(nats: RawNats, stream: str, state: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every message between first_seq and last_seq: (seq, subject, header, payload, time)."""
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = nats.request(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": seq})
        if "message" in answer:
            message = answer["message"]
            fields = ("seq", "subject", "hdrs", "data", "time")
            found.append(tuple(message.get(field) for field in fields))
    return found
