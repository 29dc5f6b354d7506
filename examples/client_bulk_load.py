"""A bulk load: a hundred thousand readings through one fast batch (ADR-50).

    python examples/client_bulk_load.py [nats://127.0.0.1:4222]

It needs a server with JetStream that has fast ingest: `penstock serve -js`, or nats-server 2.14 and later.
"""

import asyncio
import sys
from collections.abc import Iterator

import penstock.client

STREAM = "EXAMPLE_READINGS"
COUNT = 100_000


def readings() -> Iterator[bytes]:
    for n in range(COUNT):
        yield b'{"sensor":%d,"celsius":%d}' % (n % 50, 15 + n % 10)


async def main(url: str) -> None:
    async with penstock.client.connect(url) as client:
        js = client.jetstream()
        stream = await js.create_stream(
            STREAM, subjects=["readings.>"], storage="memory", allow_batched=True, allow_direct=True
        )
        try:
            # gap="fail": the stored readings are always a prefix, in order.
            async with js.fast_ingest("readings.plant1", gap="fail", flow=500) as batch:
                await batch.add_many(readings())
                ack = await batch.commit(payload=b'{"done":true}')
            print(f"{ack.count:,} messages stored, the last as {ack.seq:,}")
            print((await stream.get_message(2)).data.decode())
        finally:
            await js.delete_stream(STREAM)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
