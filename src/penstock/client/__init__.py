"""The asyncio client for NATS and JetStream.

    import penstock.client

    async with penstock.client.connect("nats://127.0.0.1:4222") as client:
        await client.publish("greet.joe", b"hello")

It works with penstock's server and with the official one, on asyncio's own event loop and on uvloop.
"""

from penstock.client.client import Client, Connecting, connect
from penstock.client.info import ServerInfo
from penstock.client.message import Msg
from penstock.client.options import ConnectOptions, Options
from penstock.client.session import ClientState
from penstock.client.subscription import Subscription
from penstock.protocol.headers import Headers

__all__ = [
    "Client",
    "ClientState",
    "ConnectOptions",
    "Connecting",
    "Headers",
    "Msg",
    "Options",
    "ServerInfo",
    "Subscription",
    "connect",
]
