"""Which messages interest or work-queue retention may remove: what every consumer is done with, or one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.api import RetentionPolicy
from penstock.testing.sim.streams import StreamRecord

if TYPE_CHECKING:
    from penstock.testing.sim.world import World


def note_settled(world: World, record: StreamRecord, in_flight: set[tuple[str, str]]) -> None:
    """Which messages interest or work queue retention may remove now."""
    present = world.engine.streams[record.name].consumers
    known = [one for key, one in world.consumers.items() if key[0] == record.name and key[1] in present]
    if any(stream == record.name for stream, _ in in_flight):
        record.settled = set(record.live)  # its consumers come and go in this tick
        return
    if record.config.retention is RetentionPolicy.WORKQUEUE:
        record.settled = {
            seq for seq, held in record.live.items()
            if any(one.may_let_go(held) for one in known)
        }  # fmt: skip
        return
    record.settled = {
        seq for seq, held in record.live.items()
        if all(one.is_done_with(held) for one in known)
    }  # fmt: skip
