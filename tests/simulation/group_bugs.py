"""Bugs of pinned clients and of resets, planted on purpose like those of bugs.py."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.jetstream.consumer.consumer_delivery import ConsumerDelivery
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.groups import Pinning
from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.protocol.api import DeliverPolicy


def pins_that_end_too_early(patch: pytest.MonkeyPatch) -> None:
    """A pin ends long before its client could request again."""
    claim = Pinning._claim

    def claimed(pinning: Pinning) -> bytes:
        pin = claim(pinning)
        pinning.due = pinning._now + 1
        return pin

    patch.setattr(Pinning, "_claim", claimed)


def resets_in_memory_alone(patch: pytest.MonkeyPatch) -> None:
    """A reset is not in the consumer's files."""
    reset = ConsumerReplica.reset

    def unstored(consumer: ConsumerReplica, seq: int, now: int) -> int:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(consumer.store, "append", lambda entry: None)
            return reset(consumer, seq, now)

    patch.setattr(ConsumerReplica, "reset", unstored)


def resets_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """The start of a reset is stored before the rest of it, and a restart uses it whatever the position."""
    reset = ConsumerReplica.reset

    def in_two(consumer: ConsumerReplica, seq: int, now: int) -> int:
        if consumer.config.deliver_policy is DeliverPolicy.ALL:  # others may refuse it
            first = seq or consumer.state.ack_floor_stream + 1
            consumer._save(msgspec.structs.replace(consumer.meta, since=first), now)
        return reset(consumer, seq, now)

    patch.setattr(ConsumerReplica, "reset", in_two)
    patch.setattr(ConsumerReplica, "_begin_within_position", lambda consumer: consumer.meta)


def resets_that_follow_the_end(patch: pytest.MonkeyPatch) -> None:
    """A restart moves a consumer that was reset beyond the end of its stream back to the end."""
    patch.setattr(ConsumerReplica, "_start_of", lambda consumer, seq: 0)


def resets_that_deliver_on(patch: pytest.MonkeyPatch) -> None:
    """After a reset, deliveries go on where they were."""

    def start_over(delivery: ConsumerDelivery, meta: ConsumerMeta, seq: int, now: int) -> None:
        return

    patch.setattr(ConsumerDelivery, "start_over", start_over)


GROUP_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (pins_that_end_too_early, "pinned", 70),
    (resets_in_memory_alone, "numbers", 40),
    (resets_in_two_steps, "resets are whole", 527),
    (resets_that_follow_the_end, "resets are whole", 287),
    (resets_that_deliver_on, "num_pending", 256),
]
