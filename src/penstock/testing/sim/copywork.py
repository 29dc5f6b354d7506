"""Client actions on mirrors and sources: creating, updating and using them."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import to_builtins

from penstock.testing.sim.dead_letter_checks import LETTERS
from penstock.testing.sim.simulator import Simulator
from penstock.testing.sim.source_model import (
    MIRROR,
    SOURCED,
    TARGETS,
    mirror_config,
    source_config,
    sourced_config,
)
from penstock.testing.sim.stream_checks import StreamRecord


def target_config(sim: Simulator, config: dict[str, Any], random: Random, *, closed: bool) -> dict[str, Any]:
    """A configuration with a mirror or sources, derived from any other one."""
    name = config["name"]
    origins = sorted(sim.streams.keys() - {LETTERS, *TARGETS})
    if not origins:
        return config
    if name == MIRROR:
        origin = random.choice(origins)
        return mirror_config(config, _source(sim, origin, name, random), random)
    chosen = random.sample(origins, min(len(origins), random.choice([1, 1, 2])))
    sources = [_source(sim, origin, name, random) for origin in chosen]
    if random.random() < 0.1:
        one = chosen[0]  # twice, with filters that do not overlap
        sources = [{"name": one, "filter_subject": f"{one}.x"}, {"name": one, "filter_subject": f"{one}.z.>"}]
    return sourced_config(config, sources, random, closed=closed)


def target_update(
    sim: Simulator, record: StreamRecord, config: dict[str, Any], random: Random
) -> dict[str, Any]:
    """An update of it: a mirror stays, sources come and go."""
    present = record.config
    config = target_config(sim, config, random, closed=not present.subjects)
    if present.mirror is not None:
        config["mirror"] = to_builtins(present.mirror)
    elif "sources" in config and random.random() < 0.5:
        config["sources"] = to_builtins(present.sources)
    return config


def _source(sim: Simulator, origin: str, target: str, random: Random) -> dict[str, Any]:
    return source_config(origin, target, sim.streams[origin].last_seq, sim.now, random)


def root_of(record: StreamRecord, random: Random) -> str:
    """A likely first token of subjects in the stream."""
    config = record.config
    origins = [config.mirror] if config.mirror is not None else config.sources
    if not origins:
        return record.name
    return random.choice([*(one.name for one in origins), *([record.name] if config.subjects else [])])


def is_open(record: StreamRecord) -> bool:
    """Whether it accepts publishes."""
    return bool(record.config.subjects)


def target_name(random: Random) -> str:
    return random.choice([MIRROR, SOURCED, SOURCED])


def check_copies(sim: Simulator) -> None:
    """Checks after a quiet period that nothing is missing."""
    for record in sim.streams.values():
        if record.copies is not None:
            record.copies.check_complete()


def lag_of(sim: Simulator) -> int:
    """How many messages the targets are behind, as the server reports it."""
    lag = 0
    for name in TARGETS:
        stream = sim.engine.streams.get(name)
        if stream is not None:
            mirror, sources = sim.engine.sourcing.infos(stream, sim.now)
            lag += sum(one.lag for one in [*sources, *([mirror] if mirror is not None else [])])
    return lag
