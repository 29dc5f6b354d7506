"""Durable consumers that make an interest or work-queue stream retain messages for a mirror or source.

Such an origin retains what some consumer needs. So each mirror or source has one there, with the official
server's names (`JS_MIRROR_...`, `JS_SRC_...`): it is visible, survives restarts, and is removed with its
stream. It delivers nothing: the reader reads the log, and reports what the target has taken. Only after that
was written, a message counts as acked, and the origin may remove it.

Invariant: the consumer's position never runs ahead of what the target has stored. It may lag: a crash between
the two leaves messages in the origin that the target already has. A power failure may keep the position and
lose the copies, where neither was synced: each start sets such a consumer back to what its target has.
"""

from __future__ import annotations

import logging

from penstock.errors import StoreError
from penstock.jetstream.consumer.consumer_config import filters_of
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.sourcing_ports import SourcingPorts
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol.api import AckPolicy, ApiConsumerConfig, DeliverPolicy
from penstock.protocol.ids import short_hash

log = logging.getLogger("penstock.jetstream")

ACK_PENDING_MAX = 1000  # the official server's value


def consumer_name(ports: SourcingPorts, stream: StreamReplica, source_state: SourceState) -> str:
    """A stable name, so that a restart finds the consumer; includes the filters when an origin is sourced
    twice."""
    domain = f" {ports.domain}" if ports.domain else ""
    stable = short_hash(f"{stream.name} {ports.account}{domain}")
    if source_state.is_mirror:
        return f"JS_MIRROR_{stable}"
    names = [source.name for source in stream.config.sources]
    if names.count(source_state.source.name) > 1:
        stable += f" {source_state.index_name}"
    return f"JS_SRC_{short_hash(stable)}"


def make(
    ports: SourcingPorts,
    origin: StreamReplica,
    stream: StreamReplica,
    source_state: SourceState,
    start_seq: int,
    now: int,
) -> ConsumerReplica:
    """Finds or creates the consumer of a source. start_seq: its first sequence, so that messages that the
    source never takes stay in a work queue. Raises StoreError when it cannot be stored."""
    name = consumer_name(ports, stream, source_state)
    filters = [one.decode() for one in source_state.filters]
    present = find(ports, origin, stream, source_state)
    if present is not None:
        return present
    other = origin.consumers.get(name)
    if other is not None:
        ports.consumers.retire(other)
    about = "mirror" if source_state.is_mirror else "src"
    metadata = {f"_nats.{about}.acc": ports.account, f"_nats.{about}.stream": stream.name}
    if ports.domain:
        metadata[f"_nats.{about}.domain"] = ports.domain
    config = ApiConsumerConfig(
        durable_name=name,
        name=name,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE if start_seq > 1 else DeliverPolicy.ALL,
        opt_start_seq=start_seq if start_seq > 1 else 0,
        ack_policy=AckPolicy.FLOW_CONTROL,
        max_deliver=-1,
        filter_subject=filters[0] if len(filters) == 1 else "",
        filter_subjects=filters if len(filters) > 1 else [],
        max_ack_pending=ACK_PENDING_MAX,
        flow_control=True,
        deliver_subject=f"$JS.{'M' if source_state.is_mirror else 'S'}.{ports.new_id()}",
        idle_heartbeat=SECOND_NS,
        sourcing=True,
        metadata=metadata,
    )
    return ports.consumers.create(origin, config, name, now, driven=True)


def find(
    ports: SourcingPorts, origin: StreamReplica, stream: StreamReplica, source_state: SourceState
) -> ConsumerReplica | None:
    """The existing consumer, or None. Its name depends on whether it was the origin's only source then."""
    named = origin.consumers.get(consumer_name(ports, stream, source_state))
    if named is not None and _is_for(named, stream, source_state):
        return named
    found = [one for one in origin.consumers.values() if _is_for(one, stream, source_state)]
    if not found:
        # the usual case: comparing the names for each of a thousand new sources would take a million steps
        return None
    others = [
        one for one in stream.sources.states if one is not source_state and one.source.name == origin.name
    ]
    taken = {consumer_name(ports, stream, other) for other in others}
    return min((one for one in found if one.name not in taken), key=lambda one: one.name, default=None)


def _is_for(consumer: ConsumerReplica, stream: StreamReplica, source_state: SourceState) -> bool:
    about = "mirror" if source_state.is_mirror else "src"
    metadata = consumer.config.metadata or {}
    if not consumer.is_driven or metadata.get(f"_nats.{about}.stream") != stream.name:
        return False
    return filters_of(consumer.config) == [one.decode() for one in source_state.filters]


def retire_orphans(ports: SourcingPorts) -> None:
    """Removes consumers whose target is gone: because of a crash before the consumer was removed, or because
    it was in memory. Nothing would ever ack their messages."""
    for origin in list(ports.table.open.values()):
        if origin.group is not None:
            continue  # the streams that read it may be on other servers
        for consumer in [one for one in origin.consumers.values() if one.is_driven]:
            metadata = consumer.config.metadata or {}
            name = metadata.get("_nats.mirror.stream") or metadata.get("_nats.src.stream") or ""
            stream = ports.table.open.get(name)
            source_states = stream.sources.states if stream is not None else []
            of_it = [one for one in source_states if one.reads_log and one.source.name == origin.name]
            is_known = stream is not None and any(_is_for(consumer, stream, one) for one in of_it)
            if is_known or name in ports.table.offline:
                continue
            log.warning(
                "consumer %s of stream %s: stream %s no longer exists", consumer.name, origin.name, name
            )
            ports.consumers.retire(consumer)


def set_back(ports: SourcingPorts) -> None:
    """Sets back consumers that are ahead of their targets, when all streams are open after a restart: what a
    target lost in a power failure it reads again, and until then the origin must not remove it."""
    for stream in ports.table.open.values():
        for state in stream.sources.states if stream.group is None else []:
            origin = ports.table.open.get(state.source.name) if state.reads_log else None
            if origin is None or origin.interest_state is None or origin.group is not None:
                continue
            if not state.is_mirror and state.ident and state.ident != origin.identity:
                continue  # it was recreated: the position is not one of its sequences
            consumer = find(ports, origin, stream, state)
            wanted = state.first_wanted(origin.log)
            if consumer is not None and wanted <= consumer.state.delivered_stream:
                log.warning(
                    "stream %s lost copies of messages of %s: from sequence %d on it reads again",
                    stream.name, origin.name, wanted,
                )  # fmt: skip
                try:
                    consumer.set_back(wanted)
                except StoreError as error:  # it is written with the next change
                    log.error("consumer %s of stream %s: %s", consumer.name, origin.name, error)


def settle(consumer: ConsumerReplica, source_state: SourceState, now: int) -> None:
    """Acks everything up to the position that the source's stream has written."""
    upto_seq = min(source_state.seq, consumer.stream.log.last_seq)
    if upto_seq > consumer.state.delivered_stream:
        consumer.settle_upto(upto_seq, source_state.filters, now)
