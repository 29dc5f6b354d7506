"""Replicated JetStream of a running server: its groups, and what joins them to the engines.

- `stream_group_owner`: one stream between its engine and its group. `stream_groups`: all of them.
- `founding`, `own_presence`, `peer_watch`, `meta_members`, `meta_replica`: the servers of the cluster, and
  what they agree on.
- `stream_supervisor`: which groups there are, and who their members are. `asset_duties`: what the leader of a
  group does for the cluster. `cluster_api`: requests; `confirmed_requests`: those that wait until the meta
  state is current; `request_tickets`, `waiting_tickets`, `info_gathering`: their answers.
- `cluster_administration`: requests of the system account. `cluster_monitoring`, `cluster_sights`,
  `cluster_events`: what users see of it. `cluster_jetstream`: joins all this.
- `hand_over`, `deferred_requests`, `waiting_publishes`, `late_publishes`: acks, requests and publishes around
  a change of leaders.
- `group_states`: the states of one replica. `stream_checkpoints`: taking a stream's checkpoints.
  `state_files`: their files. `state_loading`: a replica from a checkpoint, its own or the leader's.
  `stream_catch_up`: fetching files from other members.
- `work_turns`: long work of the event loop, in turns.
"""
