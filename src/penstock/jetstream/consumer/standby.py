"""Consumers of a stream that follows: their configuration and ack state, kept ready for a new leader.

The leader's consumer journals are the commands (ProgressConsumer). Nothing is delivered, and no ack arrives
here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.jetstream.consumer.consumer_config import filters_of
from penstock.jetstream.consumer.state import KERNEL_POLICY, ConsumerMeta
from penstock.kernels.consumer.ack_state import AckPolicy as KernelPolicy
from penstock.kernels.consumer.ack_state import AckState
from penstock.protocol.api import AckPolicy, PriorityPolicy, encode


def policy_of(meta: ConsumerMeta) -> KernelPolicy:
    """The policy of a consumer's ack state. A driven one acks by its position alone."""
    is_driven = meta.config.ack_policy is AckPolicy.FLOW_CONTROL if meta.driven is None else meta.driven
    return KernelPolicy.ACK_NONE if is_driven else KERNEL_POLICY[meta.config.ack_policy]


class Pin(NamedTuple):
    """The pin of a client: its id, "" without one, and since when (ns), 0 without one."""

    id: str = ""
    since: int = 0


NO_PIN = Pin()


class StandbyConsumer:
    """One of them. pin: of the pinned client.

    Whether it is paused follows from its configuration and the time.
    """

    def __init__(self, meta: ConsumerMeta) -> None:
        self.meta = meta
        self.state = AckState(policy_of(meta), meta.start_seq, journaling=False)
        self.pin = NO_PIN

    @property
    def filters(self) -> list[bytes]:
        """The subjects of its messages; empty for all."""
        return [one.encode() for one in filters_of(self.meta.config)]

    def change(self, meta: ConsumerMeta) -> None:
        """Takes another configuration."""
        self.meta = meta
        if meta.config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            self.set_pin("", 0)

    def set_pin(self, pin: str, now: int) -> None:
        """Begins a pin at `now` (ns), or ends it when `pin` is empty."""
        self.pin = Pin(pin, now) if pin else NO_PIN


class StandbyConsumers:
    """Those of one stream, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, StandbyConsumer] = {}

    def filters(self) -> dict[str, list[bytes]]:
        """The filters of each consumer; empty for all messages."""
        return {name: one.filters for name, one in self.by_name.items()}

    def set_consumer(self, name: str, meta: bytes) -> list[bytes]:
        """Creates a consumer, or changes its stored configuration. Returns its filters."""
        decoded = msgspec.json.decode(meta, type=ConsumerMeta)
        present = self.by_name.get(name)
        if present is None:
            self.by_name[name] = StandbyConsumer(decoded)
        else:
            present.change(decoded)
        return self.by_name[name].filters

    def dump(self) -> list[tuple[bytes, bytes, str, int]]:
        """The state, for restore_consumer(): of each its ConsumerMeta as JSON, its ack state, the pinned
        client's id, and since when (ns) it is pinned."""
        return [(encode(one.meta), one.state.snapshot(), *one.pin) for one in self.by_name.values()]

    def restore_consumer(self, meta: bytes, acks: bytes, pin: str, pinned_at: int) -> tuple[str, list[bytes]]:
        """Takes over a consumer of another replica; returns its name and filters. Raises ValueError when its
        state cannot be read."""
        name = msgspec.json.decode(meta, type=ConsumerMeta).name
        filters = self.set_consumer(name, meta)
        self.by_name[name].state.restore(acks)
        self.by_name[name].set_pin(pin, pinned_at)
        return name, filters

    def drop_consumer(self, name: str) -> None:
        """Removes a consumer."""
        self.by_name.pop(name, None)

    def pin_consumer(self, name: str, pin: str, now: int) -> None:
        """Begins a pin at `now` (ns), or ends it when `pin` is empty."""
        self.by_name[name].set_pin(pin, now)

    def progress_consumer(self, name: str, entry: bytes) -> None:
        """Applies an entry of its journal. Raises ValueError when it cannot follow its state."""
        self.by_name[name].state.replay(entry)
