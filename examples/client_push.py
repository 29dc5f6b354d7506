"""Push consumers: a durable one with acks, an ordered one, and a queue group.

    python examples/client_push.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other NATS server.
"""

import asyncio
import sys

import penstock.client
from penstock.client import JetStream, JsMsg


async def ordered(js: JetStream) -> None:
    """All messages in their order, without acks."""
    async with await js.subscribe("example.push.>", ordered=True) as subscription:
        print([(await subscription.next(5)).data.decode() for _ in range(4)])


async def durable(js: JetStream) -> None:
    """A consumer that stays after its subscription, and knows what was acked."""
    async with await js.subscribe("example.push.>", durable="audit", ack_wait=30) as subscription:
        for _ in range(4):
            msg = await subscription.next(5)
            await msg.ack_sync()
        info = await subscription.consumer_info()
        print(f"{info.name}: acked up to message {info.ack_floor.stream_seq}, {info.num_pending} left")


async def queue_group(js: JetStream) -> None:
    """Two members share the messages of one consumer."""
    done: list[str] = []
    all_done = asyncio.Event()

    async def work(msg: JsMsg) -> None:
        done.append(msg.data.decode())
        if len(done) == 4:
            all_done.set()

    members = [
        await js.subscribe("example.push.>", queue="workers", callback=work, auto_ack=True) for _ in range(2)
    ]
    await all_done.wait()
    print(f"{len(done)} jobs done by {len(members)} members")
    for member in members:
        await member.drain()


async def main(url: str) -> None:
    async with penstock.client.connect(url) as client:
        js = client.jetstream()
        stream = await js.create_stream("EXAMPLE_PUSH", subjects=["example.push.>"], storage="memory")
        for fruit in ("apple", "pear", "plum", "quince"):
            await js.publish("example.push.fruit", fruit)
        await ordered(js)
        await durable(js)
        await queue_group(js)
        await stream.delete()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
