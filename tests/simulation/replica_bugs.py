"""Bugs that make replicas differ, planted on purpose like those of bugs.py: what a command does depends on
more than the stream's state, the command and its time, or a change is no command."""

from __future__ import annotations

import itertools
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.jetstream import commands
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.standby import StandbyConsumer
from penstock.jetstream.stream import purge, ttl
from penstock.jetstream.stream.atomic_batches import AtomicBatches
from penstock.jetstream.stream.fast_batches import FastIngestBatches
from penstock.jetstream.stream.message_schedules import RETRY_NS
from penstock.jetstream.stream.rollups import Rollups
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.staged import Checked
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream.stream_timers import StreamTimers
from penstock.testing.sim.replicas import Replicas

_encode = commands.encode


def _encoded(patch: pytest.MonkeyPatch, change: Callable[[Any, int], tuple[Any, int]]) -> None:
    """The commands that others get are not those that were applied here."""
    patch.setattr(commands, "encode", lambda command, now: _encode(*change(command, now)))


def wall_clock_in_expiry(patch: pytest.MonkeyPatch) -> None:
    """When a message expires is counted from the clock of each server."""
    add = ttl.MessageTtls.add
    patch.setattr(
        ttl.MessageTtls, "add",
        lambda ttls, seq, ts, ttl_ns: add(ttls, seq, ts + time.time_ns() % 1_000_000, ttl_ns),
    )  # fmt: skip


def time_as_a_float(patch: pytest.MonkeyPatch) -> None:
    """The time of a command travels as a float, which has no nanoseconds after 2001."""
    _encoded(patch, lambda command, now: (command, int(struct.unpack("<d", struct.pack("<d", now))[0])))


def time_of_the_arrival(patch: pytest.MonkeyPatch) -> None:
    """Commands are applied at the time of their arrival, not at the one they come with."""
    arrivals = itertools.count(1)
    _encoded(patch, lambda command, now: (command, now + next(arrivals)))


def batch_in_order_of_memory(patch: pytest.MonkeyPatch) -> None:
    """The messages of an atomic batch are stored in the order of a set, which differs between processes."""
    store_batch = StreamReplica.store_batch

    def shuffled(to: StreamReplica, checked: list[Checked], now: int) -> int:
        return store_batch(to, sorted(checked, key=lambda one: hash((id(to), one.subject))), now)

    patch.setattr(StreamReplica, "store_batch", shuffled)
    patch.setattr(StreamReplica, "may_store_staged", lambda *_: False)


def rollups_by_chance(patch: pytest.MonkeyPatch) -> None:
    """How much of a roll-up is removed at once is drawn by each replica."""
    remove = Rollups._remove

    def drawn(to: Rollups, filter_subject: bytes, seq: int, end_seq: int, looks: int) -> tuple[int, int]:
        return remove(to, filter_subject, seq, end_seq, random.randint(1, 2))

    patch.setattr(Rollups, "_remove", drawn)


def admitted_by_each_server(patch: pytest.MonkeyPatch) -> None:
    """A full disk is known to the server that has it, and to no replica."""
    patch.setattr(StreamReplica, "admit", lambda to, refuse_all, end: to.limit_admission(refuse_all, end))


def schedules_ask_the_disk(patch: pytest.MonkeyPatch) -> None:
    """Schedules wait while the disk of this server fails, whatever the commands say."""
    run = StreamTimers._run_schedules

    def asking(timers: StreamTimers, now: int, work: int) -> int:
        to = timers._stream
        if to.durability.failure is not None:
            to.schedules.postpone(now + RETRY_NS)
            return 0
        refused, to.refuse_all = to.refuse_all, None
        try:
            return run(timers, now, work)
        finally:
            to.refuse_all = refused

    patch.setattr(StreamTimers, "_run_schedules", asking)


def expiry_without_its_bound(patch: pytest.MonkeyPatch) -> None:
    """The work of an expiry is bounded here, and not in the command."""

    def unbounded(command: Any, now: int) -> tuple[Any, int]:
        return (commands.Expire(sys.maxsize) if isinstance(command, commands.Expire) else command), now

    expire = StreamReplica.expire
    _encoded(patch, unbounded)
    patch.setattr(StreamReplica, "expire", lambda to, now, work=1: expire(to, now, min(work, 1)))


def rollup_budget_of_the_server(patch: pytest.MonkeyPatch) -> None:
    """How much roll-ups may remove at once is what this server's other streams left of it."""
    patch.setattr(Rollups, "limit", lambda to, messages: setattr(to, "left", messages))
    replace = Rollups.replace

    def shared(to: Rollups, filter_subject: bytes, end_seq: int, by_seq: int) -> None:
        to.left = to._allowance.left if to._allowance is not None else 1 << 30
        replace(to, filter_subject, end_seq, by_seq)

    patch.setattr(Rollups, "replace", shared)


def purge_is_no_command(patch: pytest.MonkeyPatch) -> None:
    """A purge with a filter removes messages without a command."""
    patch.setattr(purge, "_remove_part", lambda to, *rest: to.log.purge_part(*rest))


def acks_remove_without_a_command(patch: pytest.MonkeyPatch) -> None:
    """Messages that consumers settled are removed by the server that has the consumers."""
    patch.setattr(StreamReplica, "remove_settled", lambda to, runs: runs.remove_from(to.log))


def interest_without_filters(patch: pytest.MonkeyPatch) -> None:
    """A replica stores every message of an interest stream, whatever the consumers' filters."""
    patch.setattr(StandbyConsumer, "filters", [])


def deletes_lost_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """A command is skipped."""
    _lost(patch, commands.DeleteMessage)


def _lost(
    patch: pytest.MonkeyPatch, kind: type, is_lost: Callable[[Any], bool] = lambda command: True
) -> None:
    record = Replicas.record

    def lossy(replicas: Replicas, to: Any, command: bytes) -> None:
        decoded = commands.decode(command)[0]
        if not (isinstance(decoded, kind) and is_lost(decoded)):
            record(replicas, to, command)

    patch.setattr(Replicas, "record", lossy)


def consumers_stay(patch: pytest.MonkeyPatch) -> None:
    """That a consumer was deleted is known to its owner alone."""
    _lost(patch, commands.DropConsumer)


def resets_lost_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """That a client reset a consumer is known to its owner alone."""
    _lost(patch, commands.ProgressConsumer, lambda command: command.entry.startswith(b"F"))


def pins_lost_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """Which client is pinned is known to the server that serves it alone."""
    _lost(patch, commands.PinConsumer)


def pins_by_the_clock_of_each_server(patch: pytest.MonkeyPatch) -> None:
    """A pin begins when its command arrives, not at the time it comes with."""
    set_pin = StandbyConsumer.set_pin
    patch.setattr(StandbyConsumer, "set_pin", lambda to, pin, now: set_pin(to, pin, now + 1))


def progress_of_one_sequence_lost(patch: pytest.MonkeyPatch) -> None:
    """What a consumer did is no command when its entry is short."""
    record = ConsumerReplica._record

    def long_ones(consumer: ConsumerReplica, entry: bytes) -> None:
        if len(entry) > 6:
            record(consumer, entry)

    patch.setattr(ConsumerReplica, "_record", long_ones)


def publishes_doubled_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """A batch of publishes that is sent again is applied again."""
    record = Replicas.record

    def doubled(replicas: Replicas, to: Any, command: bytes) -> None:
        record(replicas, to, command)
        if command[0] == commands.PUBLISHES:
            record(replicas, to, command)

    patch.setattr(Replicas, "record", doubled)


def origin_changed_without_a_command(patch: pytest.MonkeyPatch) -> None:
    """That an origin was created again is known to its reader alone."""
    patch.setattr(SourceState, "move_to", SourceState.place)


def batches_time_out_by_the_configuration(patch: pytest.MonkeyPatch) -> None:
    """When an open batch is abandoned follows from this server's configuration."""
    for kind in (AtomicBatches, FastIngestBatches):
        expire = kind.expire

        def at_once(batches: Any, now: int, expire: Any = expire) -> None:
            limits = batches._stream.batch_limits
            if batches._context.config().server_name == "sim":
                batches._stream.batch_limits = commands.LimitBatches(
                    limits.atomic_end, limits.staged_end, limits.fast_end, limits.messages_max, 1
                )
            try:
                expire(batches, now)
            finally:
                batches._stream.batch_limits = limits

        patch.setattr(kind, "expire", at_once)


def batch_size_by_the_configuration(patch: pytest.MonkeyPatch) -> None:
    """How many messages an atomic batch may have is not told to replicas."""
    patch.setattr(StreamReplica, "limit_batches", lambda to, limits: None)
    admit = Capacity.admit

    def direct(capacity: Capacity, to: StreamReplica) -> None:
        if to.takes_batches:
            to.batch_limits = capacity._batch_limits(to)
        admit(capacity, to)

    patch.setattr(Capacity, "admit", direct)


RULE = "replicas are equal"
REPLICA_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (wall_clock_in_expiry, RULE, 7),
    (time_as_a_float, RULE, 1),
    (time_of_the_arrival, RULE, 1),
    (batch_in_order_of_memory, RULE, 1),
    (rollups_by_chance, RULE, 1),
    (admitted_by_each_server, RULE, 2),
    (schedules_ask_the_disk, RULE, 88),
    (expiry_without_its_bound, RULE, 8),
    (rollup_budget_of_the_server, RULE, 1),
    (purge_is_no_command, RULE, 4),
    (acks_remove_without_a_command, RULE, 1),
    (interest_without_filters, RULE, 1),
    (deletes_lost_on_the_way, RULE, 1),
    (publishes_doubled_on_the_way, RULE, 1),
    (origin_changed_without_a_command, RULE, 3),
    (batches_time_out_by_the_configuration, RULE, 15),
    (batch_size_by_the_configuration, RULE, 1),
    (consumers_stay, RULE, 4),
    (resets_lost_on_the_way, RULE, 40),
    (pins_lost_on_the_way, RULE, 12),
    (pins_by_the_clock_of_each_server, RULE, 12),
    (progress_of_one_sequence_lost, RULE, 1),
]
