"""Core NATS: publish, subscribe, request.

    python examples/client_core.py [nats://127.0.0.1:4222]

It needs a server: `penstock serve`, or any other NATS server.
"""

import asyncio
import sys

import penstock.client
from penstock.client import Client, Msg
from penstock.errors import NoRespondersError


async def answer_time(msg: Msg) -> None:
    """A service that answers requests on `time.<city>`."""
    city = msg.subject.removeprefix("time.")
    await msg.respond(f"noon in {city}", headers={"Precision": "poor"})


async def greet(client: Client) -> None:
    # A subscription is an async iterator; `*` stands for one token of the subject, `>` for the rest.
    subscription = await client.subscribe("greet.*")
    for name in ("joe", "pam", "sue"):
        await client.publish(f"greet.{name}", "hello")
    await subscription.unsubscribe(max_messages=3)
    async for msg in subscription:
        print(f"{msg.subject}: {msg.data.decode()}")


async def ask(client: Client) -> None:
    # Each request goes to one member of the queue group.
    for _ in range(2):
        await client.subscribe("time.*", queue="clocks", callback=answer_time)
    answer = await client.request("time.rome", timeout=2)
    print(f"{answer.data.decode()} (precision: {answer.headers['Precision']})")
    try:
        await client.request("weather.rome")
    except NoRespondersError as error:
        print(error)


async def main(url: str) -> None:
    async with penstock.client.connect(url, name="example") as client:
        await greet(client)
        await ask(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
