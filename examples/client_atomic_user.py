"""A user record in several keys, changed as one: an atomic batch (ADR-50).

    python examples/client_atomic_user.py [nats://127.0.0.1:4222]

It needs a server with JetStream that has atomic batches: `penstock serve -js`, or nats-server 2.12 and later.
"""

import asyncio
import sys

import penstock.client
from penstock.client import JetStream, Stream
from penstock.errors import WrongLastSequenceError

STREAM = "EXAMPLE_USERS"
HOME = {"street": "Main Street 1", "city": "Springfield", "zip": "12345"}
AWAY = {"street": "Ocean Drive 7", "city": "Seaside", "zip": "54321"}


async def move(js: JetStream, user: str, address: dict[str, str], *, last_change: int) -> int:
    """Store an address completely or not at all.

    last_change: stream sequence of the change that this one is based on. A later change by another writer
    rejects this one. Returns the sequence of this change.
    """
    async with js.atomic_batch() as batch:
        *fields, last = address.items()
        for n, (key, value) in enumerate(fields):
            # Only the first message of a batch may set expected_last_sequence.
            expected = {"expected_last_sequence": last_change} if n == 0 else {}
            await batch.add(f"users.{user}.{key}", value, **expected)
        ack = await batch.commit(f"users.{user}.{last[0]}", last[1])
    return ack.seq


async def read(stream: Stream, user: str) -> dict[str, str]:
    found = {}
    for key in HOME:
        message = await stream.get_last_message(f"users.{user}.{key}")
        found[key] = message.data.decode()
    return found


async def main(url: str) -> None:
    async with penstock.client.connect(url) as client:
        js = client.jetstream()
        stream = await js.create_stream(
            STREAM, subjects=["users.>"], storage="memory", max_msgs_per_subject=1, allow_atomic=True,
            allow_direct=True,
        )  # fmt: skip
        try:
            first = await move(js, "joe", HOME, last_change=0)
            print(f"joe lives in {(await read(stream, 'joe'))['city']}")
            await move(js, "joe", AWAY, last_change=first)
            print(f"joe lives in {(await read(stream, 'joe'))['city']}")
            try:
                await move(js, "joe", HOME, last_change=first)  # made from what is no longer true
            except WrongLastSequenceError:
                print("refused: another client was faster")
            print(f"nothing of it is stored: {await read(stream, 'joe') == AWAY}")
        finally:
            await js.delete_stream(STREAM)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
