"""A client from a wheel: requests, and a stream of that many messages. Run by tools/wheels.py."""

from __future__ import annotations

import asyncio
import sys

import penstock


async def main(url: str, count: int) -> None:
    async with penstock.connect(url) as nc:

        async def answer(message: penstock.client.Msg) -> None:
            await message.respond(message.data.upper())

        await nc.subscribe("upper", callback=answer)
        assert (await nc.request("upper", b"hello", timeout=10)).data == b"HELLO"

        js = nc.jetstream()
        stream = await js.create_stream("WHEEL", subjects=["wheel.>"])
        async with js.publisher(window=100) as publisher:
            for number in range(count):
                await publisher.publish("wheel.number", b"%d" % number)
        assert (await stream.info()).state.messages == count


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
