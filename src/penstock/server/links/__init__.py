"""Connections to other servers: sockets, TLS, timers and configuration of what `penstock.cluster` decides.

- `server_links`: opens and closes all links of a server.
- `routes`: the routes of a server: listener, dialling, reload.
- `link_server`: the sockets of all links of one kind: listener, dials, timers, counters.
- `link_session`: one connection to another server; `route_session` and `leaf_session` are those of routes and
  leaf nodes.
- `replication_service`: replicated groups of a running server: timers, disk thread, links;
  `replication_session`: one connection of it.
- `leafs`: the leaf node links of a server: listener, dialling, credentials, reload.
- `gateway_server`, `gateway_session`, `gateway_settings`: the same for gateways.
- `route_settings`, `leaf_settings`: the options of both from those of the server.
- `local_addresses`: the addresses of this machine, for clients and to recognize the server's own.
- `remote_connections`: how many clients of each account other servers have.
"""
