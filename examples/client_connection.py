"""A client that starts before its server, moves to another one, and counts what it did.

    python examples/client_connection.py [nats://127.0.0.1:4222]

It needs a server: `penstock serve`, or any other NATS server.
"""

import asyncio
import logging
import socket
import sys

import penstock.client


async def main(url: str) -> None:
    logging.getLogger("penstock.client").setLevel(logging.ERROR)  # lost connections are logged as warnings
    with socket.socket() as unused:  # bound, but not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        absent = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        client = await penstock.client.connect(
            absent, retry_on_failed_connect=True, reconnect_wait=60, reconnect_wait_max=60
        )
    print(f"{client.state.value}, {len(client.servers)} server in the pool")
    greetings = await client.subscribe("example.greet")
    await client.publish("example.greet", b"hello from before")

    client.set_servers(url)
    await client.force_reconnect()  # instead of waiting for the end of the pause
    await client.wait_connected(timeout=5)
    print(f"{client.state.value}: {(await greetings.next(timeout=5)).data.decode()}")

    await client.force_reconnect()  # for example because its credentials have changed
    await client.wait_connected(timeout=5)
    await client.publish("example.greet", b"hello again")
    print((await greetings.next(timeout=5)).data.decode())
    stats = client.stats
    print(f"sent {stats.out_messages}, received {stats.in_messages}, reconnects {stats.reconnects}")
    await client.drain(timeout=5)
    print(client.state.value)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
