"""Links between servers: one subject space of several servers.

The package does no IO: bytes and frames come in, frames and wishes (dial, close, compress) go out through
ports; time and randomness are arguments. The server's connections (`server/links`) and the simulation drive
the same code.

- `peer_info`: what INFO and CONNECT of all links share, and how they are read.
- `peer_link`: one connection to another server: states, pings, errors, compression of all kinds of link.
- `route_info`: the INFO and CONNECT messages of routes.
- `compression`: which compression two servers agree on, and the level for a round trip time.
- `route_link`: one connection to another server: handshake, INFO updates, pings. States as a table.
- `mesh_ports`: what a mesh takes.
- `mesh`: all routes of a server: which connection carries which account, duplicates, gossip, dialling again.
- `announcements`: what each account announces, and over which connections.

Messages and interest themselves are compiled (`kernels/wire/route_links.pyx`). Terms: a *peer* is another
server, a *link* one connection to it, a *pool* the links to one peer, which share the accounts. A *dedicated*
link carries one account alone (a pinned account).

- `interests`: what the accounts announce, for routes and leaf nodes.
- `leaf_info`: the INFO and CONNECT messages of leaf node links.
- `leaf_link`: one connection between a leaf node and its hub. States as a table.
- `leaf_nodes`: all leaf node links of a server: accounts, duplicates, loops, dialling again.
- `leaf_remote`: a hub that this server dials; `leaf_ports`: what all of these take.
- `leaf_rules`: what may pass a link; `domains`: which of JetStream's subjects may.
- `gateway_info`: the INFO and CONNECT messages of gateway links.
- `gateway_link`: one connection to a server of another cluster. States as a table.
- `gateways`: all gateway links of a server: other clusters, gossip, announcements, dialling again.
"""
