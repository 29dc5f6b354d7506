"""Checks that are too expensive for every tick: counts, gaps, and consumer infos."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.protocol.api import encode
from penstock.testing.sim.retention_model import check_driven, note_kept

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator


def check_all(sim: Simulator) -> None:
    """Runs all of them."""
    if sim.has_copies:
        sim.pass_time(0)  # copies may have expired already
    sim.tick(whole=True)
    note_kept(sim, is_over=False)
    # An interest stream removes messages delivered without acks after the write of their tick.
    sim.look(written=False)
    for record in sim.streams.values():
        record.end_tick()
    for name, record in list(sim.streams.items()):
        record.count_thoroughly(sim.engine.streams[name], sim.now)
        for one in record.features:
            one.check(sim.now, faulty=sim.faulty())
    if sim.has_copies and not sim.faulty():
        check_driven(sim)
    for (stream, name), consumer_record in sim.consumers.items():
        consumer = sim.engine.streams[stream].consumers[name]
        # The info drops removed messages, which may raise the floor: that is written with the consumer's next
        # change. A process that is killed before drops them again, but an ack in between counts first.
        floor = consumer.state.ack_floor_stream
        info = json.loads(encode(consumer.info(sim.now)))
        consumer_record.check(consumer, sim.streams[stream], info)
        if consumer not in sim.engine.pending.lagging and consumer.stream.durability.failure is None:
            consumer_record.written_floor = min(floor, consumer_record.floor)
            consumer_record.durable_floor = consumer_record.written_floor
