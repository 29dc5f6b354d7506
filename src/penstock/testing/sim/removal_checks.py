"""Checks removals of consumers: a consumer stays away after a successful response, and is complete when it
comes back otherwise. A removal that fails on the disk is rejected, and can be repeated.

Without `sync: always` a power failure may revoke a removal. With it, only that of an expired consumer, which
no client was told about. Its confirmed acks were durable, and must be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.sim import require
from penstock.testing.sim.consumer_checks import ConsumerRecord

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.testing.sim.simulator import Simulator

Created = tuple[str, str, int]  # stream, name and creation time (ns): the name may be reused


class Removals:
    """The removals of one run."""

    def __init__(self) -> None:
        self.half: set[tuple[str, str]] = set()  # the disk may have kept their files
        self._refused: dict[tuple[str, str], ConsumerRecord] = {}
        self._promised: set[Created] = set()
        self._expired: dict[Created, ConsumerRecord] = {}

    def remove(self, sim: Simulator, record: ConsumerRecord) -> None:
        """Removes a consumer as a client."""
        answer = sim.api(f"CONSUMER.DELETE.{record.stream}.{record.name}", b"", record.key)
        if answer.get("success"):
            self._promised.add((*record.key, record.created))
            self.half.discard(record.key)
            self._refused.pop(record.key, None)
        else:
            self._refused[record.key] = record

    def ask_again(self, sim: Simulator, stream: str = "", consumer: str = "") -> bool:
        """Repeats removals that failed on the disk: of these names, or all. Returns whether there were
        any."""
        engine, before = sim.engine, sim.commands
        if sim.damaged:
            return False  # offline for another reason
        for name in list(engine.offline):
            if stream in ("", name):
                sim.api(f"STREAM.DELETE.{name}", b"", ("delete", name))
        for key in [(name, one) for name, found in engine.streams.items() for one in found.offline]:
            known = self._refused.get(key)
            if known is not None and (not stream or (stream, consumer) == key):
                self.remove(sim, known)
        return sim.commands != before

    def crashed(self) -> None:
        """Forgets them: a restart found what the disk has kept."""
        self.half.clear()
        self._refused.clear()

    def vanished(self, record: ConsumerRecord, *, expired: bool, faulty: bool) -> None:
        """Records that a consumer is gone. faulty: its files may remain."""
        if expired:
            self._expired[*record.key, record.created] = record
        if faulty:
            self.half.add(record.key)

    def meet_again(self, sim: Simulator, consumer: ConsumerReplica) -> ConsumerRecord:
        """Creates the record of a consumer whose earlier history is unknown."""
        unknown = sim.meet_unknown(consumer.stream.name, consumer.name)
        unknown.was_removed = True
        unknown.recovered = consumer.state.delivered_stream
        # Several of a key may have been in flight when keys were configured, or since a power failure.
        unknown.twice_in_flight = set(unknown.delivered)
        # So are its keys: messages that were parked for one are pending without a delivery.
        unknown.had_keys |= any(not times for _, _, _, times in consumer.state.pending())
        return unknown

    def came_back(self, sim: Simulator, consumer: ConsumerReplica, *, strict: bool) -> None:
        """Checks a removed consumer that a crash left. strict: the crash lost nothing that was written."""
        stream = consumer.stream.name
        ident = (stream, consumer.name, consumer.created)
        lasts = sim.always and not sim.damaged
        may = not strict or ident[:2] in self.half
        may = may and not (lasts and ident in self._promised)
        require(may, "no resurrection", f"consumer {stream} > {consumer.name} is back")
        known = self._expired.pop(ident, None)
        if known is None or not lasts:
            self.meet_again(sim, consumer)
            return
        sim.consumers[known.key] = known
        known.check_recovery(consumer, sim.streams[stream], power=True, always=True)
