"""The server: wires the packages below it and runs them.

- `server`, `session`, `tick`: the server object, one client session, and the end-of-tick order.
- `client_subscriptions`, `keep_alive`: SUB and UNSUB, and the pings, of a session. `client_info`: its INFO.
- `server_context`, `session_registry`: what parts take instead of the server object.
- `jetstream_service`, `engines`, `disk_executor`: JetStream of all accounts and its background disk work.
- `config`: options, the nats.conf parser and the directives. `reload`: applying a changed
  configuration (SIGHUP: `cli/signals.py`).
- `auth`: authentication by users, tokens, keys, certificates, operators and auth callout; permissions.
- `accounts`: account registry, imported services.
- `monitoring`: HTTP pages, metrics, the system account, message traces. `logging`: log lines and outputs.
- `links`: connections to other servers, all of them in `links/server_links`.
- `local_clients`: connections of clients in the server's process, such as those of the web page.
- `client_tls`, `websocket_listener`, `proxy_connections`, `lame_duck`, `ports_file`: listeners and life
  cycle.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.server.server import Server

__all__ = ["Server"]


def __getattr__(name: str) -> Any:
    # Imported on use: the command line imports options and flags from here before it knows the command.
    if name == "Server":
        from penstock.extras import need, need_python

        need_python("penstock.Server")
        need("penstock.Server", "server")
        from penstock.server.server import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
