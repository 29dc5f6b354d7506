"""A client over WebSocket, for example through a proxy that lets nothing else pass.

    python examples/sync_websocket.py

It starts a server of its own with a WebSocket port (extra `[server]`).
"""

import penstock.sync
import penstock.testing
from penstock.server.config.server_options import ServerOptions, WebsocketOptions
from penstock.sync import Client


def talk(client: Client) -> None:
    client.subscribe("example.echo", callback=lambda msg: msg.respond(msg.data))
    answer = client.request("example.echo", b"over WebSocket", timeout=5)
    print(answer.data.decode())
    print(f"connected by {client.connected_url}".split("://")[0])


def main() -> None:
    websocket = WebsocketOptions(host="127.0.0.1", port=-1, no_tls=True)
    with penstock.testing.server(options=ServerOptions(port=-1, websocket=websocket)) as embedded:
        url = f"ws://127.0.0.1:{embedded.server.websockets.port}"
        with penstock.sync.connect(url, websocket_compression=True) as client:
            talk(client)


if __name__ == "__main__":
    main()
