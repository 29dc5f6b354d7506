"""A client over WebSocket, for example through a proxy that lets nothing else pass.

    python examples/client_websocket.py

It starts a server of its own with a WebSocket port (extra `[server]`).
"""

import asyncio

import penstock.client
from penstock.client import Client
from penstock.server import Server
from penstock.server.config.server_options import ServerOptions, WebsocketOptions


async def talk(client: Client) -> None:
    await client.subscribe("example.echo", callback=lambda msg: msg.respond(msg.data))
    answer = await client.request("example.echo", b"over WebSocket", timeout=5)
    print(answer.data.decode())
    print(f"connected by {client.connected_url}".split("://")[0])


async def main() -> None:
    websocket = WebsocketOptions(host="127.0.0.1", port=-1, no_tls=True)
    async with Server(options=ServerOptions(port=-1, websocket=websocket)) as server:
        url = f"ws://127.0.0.1:{server.websockets.port}"
        async with penstock.client.connect(url, websocket_compression=True) as client:
            await talk(client)


if __name__ == "__main__":
    asyncio.run(main())
