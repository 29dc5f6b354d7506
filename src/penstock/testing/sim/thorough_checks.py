"""Checks that are too expensive for every tick: counts, gaps, and consumer infos."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.protocol.api import encode
from penstock.testing.sim.retention_model import check_driven, note_kept

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator


def check_all(world: Simulator) -> None:
    """Runs all of them."""
    if world.has_copies:
        world.pass_time(0)  # copies may have expired already
    world.tick(whole=True)
    note_kept(world, is_over=False)
    # An interest stream removes messages delivered without acks after the write of their tick.
    world.look(written=False)
    for record in world.streams.values():
        record.end_tick()
    for name, record in list(world.streams.items()):
        record.count_thoroughly(world.engine.streams[name], world.now)
        for one in record.features:
            one.check(world.now, faulty=world.faulty())
    if world.has_copies and not world.faulty():
        check_driven(world)
    for (stream, name), consumer_record in world.consumers.items():
        consumer = world.engine.streams[stream].consumers[name]
        info = json.loads(encode(consumer.info(world.now)))
        consumer_record.check(consumer, world.streams[stream], info)
        if consumer not in world.engine.tick._lagging and consumer.stream.write_failure is None:
            consumer_record.kept_floor = consumer_record.floor
