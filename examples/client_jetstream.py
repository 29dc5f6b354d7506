"""Streams and consumers: store messages, process them, read them again.

    python examples/client_jetstream.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other. It makes a stream EXAMPLE_ORDERS and
deletes it again.
"""

import asyncio
import sys
from datetime import timedelta

import penstock.client
from penstock.client import JetStream, Stream
from penstock.errors import WrongLastSequenceError


async def store(js: JetStream) -> None:
    # The ack confirms that the message is stored. A publish with the same msg_id is not stored again.
    ack = await js.publish("example.orders.1", b"two pears", msg_id="order-1")
    again = await js.publish("example.orders.1", b"two pears", msg_id="order-1")
    print(f"stored as {ack.seq}, and again: duplicate={again.duplicate}")
    # Optimistic locking: stored only if the subject's last sequence is the expected one.
    await js.publish("example.orders.1", b"three pears", expected_last_subject_sequence=ack.seq)
    try:
        await js.publish("example.orders.1", b"four pears", expected_last_subject_sequence=ack.seq)
    except WrongLastSequenceError as error:
        print(error.description)
    # Windowed publishing: up to `window` publishes in flight; the block ends when all are acked.
    async with js.publisher(window=1000) as publisher:
        for number in range(2, 5001):
            await publisher.publish(f"example.orders.{number}", b"an apple")
    print(f"{publisher.acked} more are stored")


async def work_off(stream: Stream) -> None:
    consumer = await stream.create_consumer("billing", ack_wait=timedelta(seconds=30))
    first, second = await consumer.fetch(2, expires=2)
    print(f"{first.data.decode()} is message {first.seq} of {first.metadata.stream}")
    await first.ack()
    await second.nak()  # later, please
    count = 0
    async with consumer.consume(max_messages=500) as messages:
        async for msg in messages:
            await msg.ack()
            count += 1
            if count == 5000:
                break
    print(f"worked off {count} more; {(await consumer.info()).num_pending} left")


async def read_again(stream: Stream) -> None:
    # An ordered consumer needs no acks, leaves no state behind, and survives lost connections.
    seqs = []
    async for msg in stream.ordered_consumer(filter_subject="example.orders.1").messages():
        seqs.append(msg.seq)
        if not msg.metadata.pending:
            break
    last = await stream.get_last_message("example.orders.1")
    print(f"order 1 is in messages {seqs}; the latest says {last.data.decode()!r}")


async def main(url: str) -> None:
    async with penstock.client.connect(url) as client:
        js = client.jetstream()
        stream = await js.create_stream("EXAMPLE_ORDERS", subjects=["example.orders.*"], allow_direct=True)
        try:
            await store(js)
            await work_off(stream)
            await read_again(stream)
        finally:
            await stream.delete()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
