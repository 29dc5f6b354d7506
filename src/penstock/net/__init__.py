"""Sockets of the server: listeners, connections, TLS and WebSocket layers, and back pressure.

- `sockets`, `listener`: bind, listen and accept.
- `server_connection`: one client socket; reads go into the frame parser's buffer without a copy, writes
  leave once a tick.
- `route_connection`: a socket to another server: bounded output, compression.
- `tls`, `websocket`, `proxy_layer`: protocols between the socket and the connection (`layer` is their base).
- `backlog`: slow receivers, write deadlines, and pausing their publishers.
- `reasons`: why a connection was closed.

The compiled sinks also send on plain sockets (`kernels.wire`), with the file descriptor that
`ServerConnection` gives them and takes back. The monitoring port and the client open sockets of their own.
"""
