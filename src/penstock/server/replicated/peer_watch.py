"""Which servers of the cluster have JetStream: each tells the others in the system account.

A server counts as present while there is a replication link to it and it has said who it is. Messages may
be lost or late; each server repeats its own when something changed, and from time to time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from penstock.server.replicated.founding import Presence

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import Sink, SinkSubscription
    from penstock.routing.account import Account

SUBJECT = "$SYS.PENSTOCK.PEER."
REPEAT_NS = 5_000_000_000
LOOK_NS = 100_000_000
CHANGED_NS = 200_000_000  # at most so often, when only figures changed
PRESENCES_MAX = 1000
_FIGURES = {
    "used_memory": 0, "used_storage": 0, "accounts": {}, "led": {},
    "applied": 0, "peers": 0, "replicating": 0,
}  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Presence)


class PeerWatch:
    """See the module.

    Args:
        account: the system account.
        own: what this server tells.
        linked: members that there is a replication link to.
        monotonic: ns.
    """

    def __init__(
        self,
        account: Account,
        own: Callable[[], Presence],
        linked: Callable[[], Collection[str]],
        monotonic: Callable[[], int],
    ) -> None:
        self._account = account
        self._own = own
        self._linked = linked
        self._monotonic = monotonic
        self._by_member: dict[str, Presence] = {}
        self._told: Presence | None = None
        self._told_at = self._looked_at = 0
        self._told_to: frozenset[str] = frozenset()
        self._changed_at = monotonic()
        self._is_different = False
        self._subscription: SinkSubscription = account.subscribe_service(f"{SUBJECT}*".encode(), self._heard)

    @property
    def others(self) -> list[Presence]:
        """The servers that are present, without this one."""
        linked = set(self._linked())
        return [one for member, one in self._by_member.items() if member in linked]

    def take_changed(self) -> bool:
        """Whether `others` may be different since the last call."""
        is_different, self._is_different = self._is_different, False
        return is_different

    def find(self, member: str) -> Presence | None:
        """What a server said last, whether it is present or not."""
        return self._by_member.get(member)

    def settled_ns(self) -> int:
        """For how long the same servers have been present."""
        return self._monotonic() - self._changed_at

    def tick(self) -> None:
        """Tells the others what changed. Call it every 50 ms or so."""
        now = self._monotonic()
        if now - self._looked_at < LOOK_NS and self._told is not None:
            return
        self._looked_at = now
        linked = frozenset(self._linked())
        own = self._own()
        if linked != self._told_to:
            self._changed_at = now
            self._is_different = True
        elif self._told is not None and now - self._told_at < REPEAT_NS:
            if own == self._told:
                return
            is_quiet = _without_figures(own) == _without_figures(self._told)
            if now - self._told_at < (REPEAT_NS // 5 if is_quiet else CHANGED_NS):
                return
        self._told, self._told_at, self._told_to = own, now, linked
        self._account.publish(f"{SUBJECT}{own.peer}".encode(), _encoder.encode(own))

    def close(self) -> None:
        """Hears nothing more."""
        self._account.unsubscribe(self._subscription)

    def _heard(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        try:
            heard = _decoder.decode(payload)
        except (msgspec.DecodeError, ValueError):
            return  # of a newer version, or of no server
        if heard.peer == self._own().peer:
            return
        if heard.member not in self._by_member:
            if len(self._by_member) >= PRESENCES_MAX:
                return
            self._changed_at = self._monotonic()
            self._told = None  # it is new here, so this server is new there
        self._by_member[heard.member] = heard
        self._is_different = True


def _without_figures(one: Presence) -> Presence:
    return msgspec.structs.replace(one, **_FIGURES)
