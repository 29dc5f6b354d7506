"""Streams and consumers of one account: the engine behind `$JS.API`.

Read first `engine_tick.py`: it has the steps of a tick (apply, write, acknowledge, deliver) and the ordering
contracts on which durability rests. Then read `stream/stream_replica.py` and `consumer/consumer_replica.py`,
the two state machines that these steps drive.

    engine.py              constructs the parts of an account's JetStream and connects them by their ports
    stream_table.py        the streams of an account by name, open and offline
    stream_registry.py     their life: create, update, delete
    consumer_registry.py   the consumers of its streams: create, recover, delete
    engine_tick.py         the steps of a tick
    pending_work.py        what they have to do: streams, consumers, deadlines, postponed calls
    stream/                one stream: publishes and their checks, batches, retention, schedules, sources
    consumer/              one consumer: delivery, acks, redelivery, groups, dead letters
    api/                   requests to `$JS.API.>`: endpoints, handlers, responses
    opening.py             recovery of stored streams and consumers; closing.py ends all when the server stops
    durability.py          the states of a stream between a change and the disk, and what may leave in each
    commit.py              writes, syncs and retries; `sync: always`: one sync for all publishes meanwhile
    deferrals.py           what waits until a sync or a roll-up is done
    containment.py         unexpected exceptions: takes one stream or consumer offline
    capacity.py, tiers.py, cluster_use.py
                           storage use and limits of the account
    limits.py              bounds of configurations, and `EngineConfig`
    stream_config.py       checks and defaults of stream configurations
    commands.py            what changes a stream, as values with a binary encoding
    subject_claims.py      which stream, or consumer of a work queue, owns a subject
    inflight.py            limits that atomic batches of all streams share
    replicated_streams.py, replicated_stream.py, group_commands.py, stream/replica_state.py
                           streams of several servers: what goes through their group, who leads, their state
    standalone.py, state_hash.py
                           streams from before there was a cluster; replicas that differ are noticed
    sourcing.py            readers of mirrors and sources; external.py reads other accounts and domains,
                           source_consumer.py makes an origin retain messages for them; sourcing_ports.py
    snapshot.py, restore.py, transfers.py, transfer_ports.py
                           archives of streams, out and in
    slices.py, stream_removals.py, reviews.py, indexing.py
                           long work, divided among ticks
    waiting.py             limits on queued requests
    advisories.py          events and metrics under `$JS.EVENT`
    preview.py             predicts the outcome of a publish, for message traces

Imports point from the API to the engine, from there to its parts, to consumers and to streams
(`[tool.importlinter]` in pyproject.toml). Nothing takes the engine: each part takes its ports.

Invariants:
- No IO, clock or randomness: the store, the time and ids are passed in. The same calls have the same results,
  which the simulation (`penstock.testing.sim`) relies on.
- Only the event loop's thread calls the engine, and each stream has this one writer.
- A pub ack leaves after its record is written; with `sync: always` after it is synced. The same holds for
  confirmed consumer acks and for responses to requests that change something.
- A consumer delivers only messages that a crash of the process cannot remove.
- An exception that no code expected affects one stream, consumer or request, never the whole engine.
"""
