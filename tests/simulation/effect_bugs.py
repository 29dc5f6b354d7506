"""Bugs in what leaves the server, and when. See test_planted_bugs.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.jetstream.commit import LocalCommit
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects, OutgoingMessage
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.durability import Durability
from penstock.jetstream.engine_tick import EngineTick
from penstock.jetstream.stream.effects import StreamEffects
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.testing.sim.replicas import Replicas


def effects_released_twice(patch: pytest.MonkeyPatch) -> None:
    """Responses that were released are collected, and released, again."""
    release = StreamEffects.release

    def twice(effects: StreamEffects, index: SubscriptionIndex, times: object = None) -> None:
        waiting = effects.acks.items()
        release(effects, index)
        if waiting and not effects.acks.count:
            for reply, text in waiting:
                effects.acks.add(reply, text)
            release(effects, index)

    patch.setattr(StreamEffects, "release", twice)


def delivered_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """Consumers get messages that a crash can take back."""
    write = EngineTick.write

    def early(tick: EngineTick) -> None:
        for stream in list(tick._changed.values()):
            if stream.consumer_subscriptions is not None:
                ready = stream.consumer_subscriptions.ready_consumers()
                tick._deliver(ready, tick._parts.clock())
        write(tick)

    patch.setattr(EngineTick, "write", early)


def delivered_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """With `sync: always`, deliveries do not wait for the sync in flight."""
    deliver = EngineTick._deliver_all

    def early(tick: EngineTick, now: int) -> None:
        changed = list(tick._changed.values())
        deliver(tick, now)
        for stream in changed:
            if stream.consumer_subscriptions is not None:
                for consumer in stream.consumer_subscriptions.ready_consumers():
                    tick._deliver_one(consumer, now, 64)

    patch.setattr(EngineTick, "_deliver_all", early)


def sync_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A state is skipped: what a sync covers is durable when the sync starts."""
    patch.setattr(Durability, "sync_started", Durability.written)
    patch.setattr(Durability, "sync_ended", lambda durability: None)


def acked_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Responses leave when the local disk has the messages, whatever the majority will answer."""
    write = EngineTick.write

    def early(tick: EngineTick) -> None:
        write(tick)
        for stream in tick._changed.values():
            if stream.durability.is_syncing:
                stream.effects.acks.route(tick._index)

    patch.setattr(EngineTick, "write", early)


def _acked_before_the_commit(patch: pytest.MonkeyPatch, inbox: bytes) -> None:
    write = EngineTick.write

    def early(tick: EngineTick) -> None:
        write(tick)
        for stream in tick._changed.values():
            if stream.durability.is_syncing:
                acks = stream.effects.acks
                waiting = acks.items()
                acks.clear()
                for reply, answer in waiting:
                    if reply.startswith(inbox):
                        publish(tick._index, reply, b"", b"", answer)
                    else:
                        acks.add(reply, answer)

    patch.setattr(EngineTick, "write", early)


def atomic_batches_acked_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The same, of atomic batches only."""
    _acked_before_the_commit(patch, b"_IN.b.")


def fast_batches_acked_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The same, of fast batches only."""
    _acked_before_the_commit(patch, b"_IN.f.")


def commits_in_the_order_of_the_answers(patch: pytest.MonkeyPatch) -> None:
    """An answer about one stream opens the gates of all that wait."""
    answered = LocalCommit._committed

    def all_of_them(commit: LocalCommit, stream: StreamReplica) -> None:
        for other in list(commit.in_flight):
            other.durability.sync_ended()
            answered(commit, other)
            other.durability.sync_started()
        answered(commit, stream)

    patch.setattr(LocalCommit, "_committed", all_of_them)


def released_on_a_follower(patch: pytest.MonkeyPatch) -> None:
    """A follower sends the responses that it collected too."""
    look = Replicas.look

    def sending(replicas: Replicas) -> None:
        patch.setattr(StreamEffects, "drop", lambda effects: effects.acks.route(replicas._sim.index))
        look(replicas)

    patch.setattr(Replicas, "look", sending)


def refusals_lost(patch: pytest.MonkeyPatch) -> None:
    """Publishes get no response when their write fails."""
    take_replies = StreamEffects.take_replies

    def lose(effects: StreamEffects) -> list[bytes]:
        take_replies(effects)
        return []

    patch.setattr(StreamEffects, "take_replies", lose)


def requests_lost_while_writes_fail(patch: pytest.MonkeyPatch) -> None:
    """Requests that waited for a sync get no response when it failed."""
    apply = EngineTick._apply

    def losing(tick: EngineTick, now: int) -> None:
        if tick._commit.has_failing and not tick._commit.in_flight:
            tick._deferrals.take_requests()
        apply(tick, now)

    patch.setattr(EngineTick, "_apply", losing)


def unconfirmed_after_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    """Acks get no confirmation when a delivery writes what their own write did not."""
    deliver = EngineTick._deliver_one

    def silent(tick: EngineTick, consumer: ConsumerReplica, now: int, quantum: int) -> None:
        was_behind = consumer in tick._lagging
        with patch.context() as inner:
            if was_behind:
                inner.setattr(ConsumerEffects, "written", ConsumerEffects.drop_unwritten)
            deliver(tick, consumer, now, quantum)

    patch.setattr(EngineTick, "_deliver_one", silent)


def confirmed_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """Acks are confirmed when they are applied."""
    confirmation = ConsumerEffects.confirmation

    def early(effects: ConsumerEffects, subject: bytes) -> None:
        confirmation(effects, subject)
        effects.written()
        effects.release()

    patch.setattr(ConsumerEffects, "confirmation", early)


def statuses_released_twice(patch: pytest.MonkeyPatch) -> None:
    """What ends a pull request is sent by each of two releases."""
    _twice(patch, lambda one: one.header.startswith(b"NATS/1.0 4"))


def confirmations_released_twice(patch: pytest.MonkeyPatch) -> None:
    """An ack is confirmed by each of two releases."""
    _twice(patch, lambda one: not one.header)


def _twice(patch: pytest.MonkeyPatch, concerns: Callable[[OutgoingMessage], bool]) -> None:
    release = ConsumerEffects.release

    def twice(effects: ConsumerEffects) -> None:
        again = [one for one in effects.waiting if isinstance(one, OutgoingMessage) and concerns(one)]
        release(effects)
        effects.waiting += again
        release(effects)

    patch.setattr(ConsumerEffects, "release", twice)


def confirmed_by_a_follower(patch: pytest.MonkeyPatch) -> None:
    """A follower that gets a consumer's acks confirms them, as the owner does."""
    collected: list[bytes] = []
    written, look = ConsumerEffects.written, Replicas.look

    def noting(effects: ConsumerEffects) -> None:
        collected.extend(effects.unwritten)
        written(effects)

    def confirming(replicas: Replicas) -> None:
        look(replicas)
        while collected:
            publish(replicas._sim.index, collected.pop(0), b"", b"", b"")

    patch.setattr(ConsumerEffects, "written", noting)
    patch.setattr(Replicas, "look", confirming)


EFFECT_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (effects_released_twice, "answers", 2),
    (delivered_before_the_write, "delivered", 1),
    (delivered_before_the_sync, "shown means kept", 77),
    (sync_not_waited_for, "acked means kept", 24),
    (acked_before_the_commit, "acked means committed", 19),
    (atomic_batches_acked_before_the_commit, "acked means committed", 23),
    (fast_batches_acked_before_the_commit, "acked means committed", 19),
    (commits_in_the_order_of_the_answers, "acked means committed", 19),
    (released_on_a_follower, "answers", 2),
    (refusals_lost, "answers", 2),
    (requests_lost_while_writes_fail, "answers", 108),
    (unconfirmed_after_a_failed_write, "answers", 89),
    (confirmed_before_the_write, "acks stay", 29),
    (statuses_released_twice, "answers", 1),
    (confirmations_released_twice, "answers", 1),
    (confirmed_by_a_follower, "answers", 1),
]
