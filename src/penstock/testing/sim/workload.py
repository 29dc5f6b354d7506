"""What a run draws its actions from, with their weights.

The actions are in stream_work.py, consumer_work.py, disk_work.py and batchwork.py. Each draws its details
from its Random and runs in a simulator.

Rejected: a list of prepared operations (useful actions depend on the present state).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.testing.sim import thorough_checks
from penstock.testing.sim.batchwork import publish_atomic, publish_fast
from penstock.testing.sim.consumer_work import (
    ack_some,
    create_consumer,
    delete_consumer,
    pause_consumer,
    pull,
    recreate_consumer,
    reset_consumer,
    terminate_some,
    toggle_interest,
    unpin,
)
from penstock.testing.sim.disk_work import fail_disk, fill_disk, purge_on_a_full_disk, schedule_on_a_full_disk
from penstock.testing.sim.simulator import SECOND_NS, Simulator
from penstock.testing.sim.stream_work import (
    create_compressed_stream,
    create_stream,
    create_target,
    delete_message,
    delete_stream,
    erase_newest,
    get_message,
    publish_alike,
    publish_some,
    purge,
    recreate_stream,
    schedule,
    update_stream,
)

Action = Callable[[Simulator, Random], None]


def pass_time(sim: Simulator, random: Random) -> None:
    ns = random.choice([1_000_000, SECOND_NS // 2, SECOND_NS, 3 * SECOND_NS, 25 * SECOND_NS])
    sim.say(f"{ns / 1e9} s pass")
    sim.pass_time(ns)


def check_all(sim: Simulator, random: Random) -> None:
    thorough_checks.check_all(sim)


ACTIONS: tuple[tuple[Action, int], ...] = (
    (publish_some, 34),
    (schedule, 5),
    (publish_atomic, 9),
    (publish_fast, 9),
    (pass_time, 7),
    (create_stream, 6),
    (create_target, 5),
    (update_stream, 2),
    (delete_stream, 2),
    (purge, 3),
    (delete_message, 6),
    (get_message, 3),
    (create_consumer, 10),
    (delete_consumer, 1),
    (pause_consumer, 1),
    (pull, 20),
    (ack_some, 14),
    (terminate_some, 7),
    (check_all, 4),
    (toggle_interest, 3),
    (fail_disk, 2),
)

# For consumers with pinned clients, and resets of consumers.
GROUPED_ACTIONS: tuple[tuple[Action, int], ...] = (
    *ACTIONS,
    (create_consumer, 6),
    (pull, 25),
    (ack_some, 10),
    (reset_consumer, 8),
    (unpin, 5),
)

# For a disk that is full about half of the time: more removals and schedules, and time passes more often.
CROWDED_ACTIONS: tuple[tuple[Action, int], ...] = (
    (publish_some, 30),
    (schedule, 20),
    (publish_atomic, 5),
    (pass_time, 20),
    (create_stream, 6),
    (create_target, 3),
    (update_stream, 1),
    (purge, 8),
    (delete_message, 8),
    (create_consumer, 4),
    (pull, 8),
    (ack_some, 8),
    (check_all, 2),
    (fill_disk, 12),
    (schedule_on_a_full_disk, 10),
    (purge_on_a_full_disk, 10),
)

# For clients that delete soon and use names again at once; crashes are frequent.
HASTY_ACTIONS: tuple[tuple[Action, int], ...] = (
    (publish_some, 34),
    (publish_fast, 4),
    (pass_time, 3),
    (create_stream, 6),
    (recreate_stream, 8),
    (purge, 3),
    (delete_message, 30),
    (create_consumer, 6),
    (recreate_consumer, 6),
    (pull, 16),
    (ack_some, 14),
    (check_all, 3),
)

# For messages that are erased soon after they were stored, in blocks that are compressed when they are full.
ERASING_ACTIONS: tuple[tuple[Action, int], ...] = (
    (publish_some, 40),
    (publish_fast, 6),
    (publish_atomic, 3),
    (erase_newest, 40),
    (pass_time, 3),
    (create_compressed_stream, 6),
    (purge, 2),
    (create_consumer, 3),
    (pull, 6),
    (ack_some, 6),
    (check_all, 3),
)

# For starts that are killed: much is written between them, and little of it is synced.
STUMBLING_ACTIONS: tuple[tuple[Action, int], ...] = (
    (publish_alike, 60),
    (publish_some, 10),
    (publish_atomic, 3),
    (pass_time, 3),
    (create_stream, 6),
    (create_target, 2),
    (purge, 2),
    (delete_message, 6),
    (create_consumer, 6),
    (pull, 12),
    (ack_some, 10),
    (check_all, 3),
)
