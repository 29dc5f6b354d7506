"""What must be true of consumers that went: one whose removal was answered stays away, and one that comes
back comes back whole. A removal that the disk refuses is refused, and can be asked for again.

Without `sync: always` power loss may take back a removal. With it, only that of a consumer which expired: no
client was told that it is gone. What it had confirmed was on the disk, and must be there with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.sim.consumer_checks import ConsumerRecord
from penstock.testing.sim.violation import require

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.testing.sim.simulator import Simulator

Created = tuple[str, str, int]  # stream, name, and when (ns): another one may get the name


class Removals:
    """Of one world."""

    def __init__(self) -> None:
        self.half: set[tuple[str, str]] = set()  # whose files the disk may have kept
        self._refused: dict[tuple[str, str], ConsumerRecord] = {}
        self._promised: set[Created] = set()
        self._expired: dict[Created, ConsumerRecord] = {}

    def remove(self, world: Simulator, record: ConsumerRecord) -> None:
        """A client removes a consumer."""
        answer = world.api(f"CONSUMER.DELETE.{record.stream}.{record.name}", b"", record.key)
        if answer.get("success"):
            self._promised.add((*record.key, record.created))
            self.half.discard(record.key)
            self._refused.pop(record.key, None)
        else:
            self._refused[record.key] = record

    def ask_again(self, world: Simulator, stream: str = "", consumer: str = "") -> bool:
        """Clients ask again for removals that the disk refused: of these names, or all. Were there any?"""
        engine, before = world.engine, world.commands
        if world.damaged:
            return False  # what is offline there may be for another reason
        for name in list(engine.offline):
            if stream in ("", name):
                world.api(f"STREAM.DELETE.{name}", b"", ("delete", name))
        for key in [(name, one) for name, found in engine.streams.items() for one in found.offline]:
            known = self._refused.get(key)
            if known is not None and (not stream or (stream, consumer) == key):
                self.remove(world, known)
        return world.commands != before

    def crashed(self) -> None:
        """A restart found what the disk has kept."""
        self.half.clear()
        self._refused.clear()

    def vanished(self, record: ConsumerRecord, *, expired: bool, faulty: bool) -> None:
        """A consumer is gone. faulty: its files may be there."""
        if expired:
            self._expired[*record.key, record.created] = record
        if faulty:
            self.half.add(record.key)

    def came_back(self, world: Simulator, consumer: ConsumerReplica, *, strict: bool) -> None:
        """A crash left a consumer that was gone. strict: it took back nothing that was written."""
        stream = consumer.stream.name
        ident = (stream, consumer.name, consumer.created)
        lasts = world.always and not world.damaged
        may = not strict or ident[:2] in self.half
        may = may and not (lasts and ident in self._promised)
        require(may, "no resurrection", f"consumer {stream} > {consumer.name} is back")
        known = self._expired.pop(ident, None)
        if known is None or not lasts:
            unknown = world.meet_unknown(stream, consumer.name)
            unknown.was_removed = True
            unknown.recovered = consumer.state.delivered_stream
            return
        world.consumers[known.key] = known
        known.judge(consumer, world.streams[stream], power=True, always=True)
