"""What a cluster agrees on about its streams and consumers, without IO: which exist, and where.

The meta group of a cluster replicates the state of this package. Requests become commands; every server
applies them in the order of the log, and decides then. So two requests that arrive at once never both win,
and the servers never differ.

- `placement`: which servers get a stream; which stay when it is scaled down; who leads next.
- `assignments`: the values: servers, streams, consumers. `meta_tables`: the state that they make, and what is
  derived from it.
- `meta_commands`: what changes the state, and its encoding; `meta_effects`: what follows outside of it.
- `meta_machine`: applies commands. `stream_assigning`, `consumer_assigning` and `peer_assigning` decide them;
  `regrouping`: other servers for a stream that exists.
- `meta_requests`: from API requests to commands. `request_routing`: which server answers a request.
- `desired_state`: what a server should have, and what it does about the difference; `membership_steps`: how
  the leader of a group changes its members.
- `cluster_infos`, `cluster_advisories`: what clients and monitoring see of it.

Terms: a *peer* is a server of the cluster, its id the hash of its name. A *group* replicates one stream
with its consumers. An *incarnation* is the index of the command that created a stream or consumer: one that
is created again under the same name has another.
"""
