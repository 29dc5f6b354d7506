"""What a consumer without acks sends, kept until the stream's group has committed that it was delivered.

With acks, messages leave at once: a new leader may deliver them again. Without, a delivery settles a message,
and no receiver can tell that it came twice. So messages and what belongs among them (statuses, flow control
requests) wait here in their order. As on the official server, a server that ends in between has delivered
nothing of what is committed: at most once is what such a consumer promises. A leader that steps down still
sends what is committed later, because the next one begins behind it.

Bound: HELD_BYTES_MAX, above which the consumer delivers no more for the time being.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.jetstream.group_commands import GroupCommands
from penstock.kernels.consumer.endpoints import HeldDeliveries, Rotation

HELD_BYTES_MAX = 4 * 1024 * 1024


class LateSending:
    """See the module. rotation: gives messages to targets. defer: runs a call in the next tick. activate:
    lets the consumer deliver in the next tick."""

    def __init__(
        self,
        group: GroupCommands,
        rotation: Rotation,
        defer: Callable[[Callable[[], object]], None],
        activate: Callable[[], None],
    ) -> None:
        self._group = group
        self._rotation = rotation
        self._defer = defer
        self._activate = activate
        self._held = HeldDeliveries()
        self._bytes = 0
        self._was_full = False
        self._due: list[Callable[[], object]] = []
        rotation.deliver_into(self._held)

    @property
    def is_full(self) -> bool:
        """Whether the consumer has to wait; it is activated then."""
        self._was_full = self._bytes >= HELD_BYTES_MAX
        return self._was_full

    def recorded(self) -> None:
        """What was delivered until now is submitted."""
        if self._held.size:
            messages = self._held.take()
            self._bytes += messages.size
            send = partial(self._send_messages, messages, messages.size)
            self._wait(partial(self._release, send), is_late=True)

    def send(self, effects: Callable[[], object]) -> None:
        """Calls behind the messages that precede it."""
        self._wait(partial(self._release, effects), is_late=False)

    def _wait(self, release: Callable[[], object], *, is_late: bool) -> None:
        if self._group.is_leading:
            self._group.when_committed(release, is_late=is_late)
        elif not is_late:
            release()  # the last words of one that leads no more; messages are the next leader's

    def _release(self, send: Callable[[], object]) -> None:
        self._due.append(send)
        self._defer(self._send_due)  # outside of what commits, like all deliveries

    def _send_due(self) -> None:
        due, self._due = self._due, []
        for send in due:
            send()

    def _send_messages(self, messages: HeldDeliveries, size: int) -> None:
        self._bytes -= size
        messages.send(self._rotation)
        if self._was_full:
            self._was_full = False
            self._activate()
