"""A client that starts before its server, moves to another one, and counts what it did.

    python examples/sync_connection.py [nats://127.0.0.1:4222]

It needs a server: `penstock serve`, or any other NATS server.
"""

import logging
import socket
import sys

import penstock.sync


def main(url: str) -> None:
    logging.getLogger("penstock.client").setLevel(logging.ERROR)  # lost connections are logged as warnings
    with socket.socket() as unused:  # bound, but not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        absent = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        client = penstock.sync.connect(
            absent, retry_on_failed_connect=True, reconnect_wait=60, reconnect_wait_max=60
        )
    print(f"{client.state.value}, {len(client.servers)} server in the pool")
    greetings = client.subscribe("example.greet")
    client.publish("example.greet", b"hello from before")

    client.set_servers(url)
    client.force_reconnect()  # instead of waiting for the end of the pause
    client.wait_connected(timeout=5)
    print(f"{client.state.value}: {greetings.next(timeout=5).data.decode()}")

    client.force_reconnect()  # for example because its credentials have changed
    client.wait_connected(timeout=5)
    client.publish("example.greet", b"hello again")
    print(greetings.next(timeout=5).data.decode())
    stats = client.stats
    print(f"sent {stats.out_messages}, received {stats.in_messages}, reconnects {stats.reconnects}")
    client.drain(timeout=5)
    print(client.state.value)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
