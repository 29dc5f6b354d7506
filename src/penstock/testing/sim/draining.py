"""The end of a run: pulls and acks until nothing arrives, and checks that everything was delivered."""

from __future__ import annotations

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.testing.sim import require
from penstock.testing.sim.consumer_checks import ConsumerRecord, pending_of
from penstock.testing.sim.copywork import (
    check_copies,
    lag_of,
)
from penstock.testing.sim.dead_letter_checks import LETTERS
from penstock.testing.sim.schedule_checks import is_schedule
from penstock.testing.sim.simulator import SECOND_NS, Simulator


def drain(sim: Simulator) -> None:
    """Pulls and acks until nothing arrives; then checks that everything was delivered."""
    for stream in list(sim.streams.values()):
        schedules = (held.subject for held in stream.live.values() if is_schedule(held))
        for subject in dict.fromkeys(schedules):  # no set: its order differs between processes
            stream.asked.append(("purge", (subject, 0)))
            sim.api(f"STREAM.PURGE.{stream.name}", {"filter": subject})
    resume(sim)
    pull_everything(sim)
    if sim.has_copies:
        sim.pass_time(40 * SECOND_NS)  # expired messages leave markers, which are copied
        pull_everything(sim)
    sim.pass_time(12 * SECOND_NS)  # unacked dead letters are sent again
    pull_everything(sim)  # messages that expired meanwhile left markers
    check_copies(sim)
    for record in sim.consumers.values():
        check_drained(sim, record)
        pending = pending_of(_consumer(sim, record))
        if LETTERS in sim.streams and not sim.damaged:
            sim.dead_letters.check_complete(record, sim.streams[record.stream], pending.keys())


def resume(sim: Simulator) -> None:
    """Ends all pauses, and subscribes to all deliver subjects."""
    for key in list(sim.consumers):
        if key in sim.consumers:
            sim.api(f"CONSUMER.PAUSE.{key[0]}.{key[1]}", {})
    for record in sim.consumers.values():
        if record.push:
            sim.bind(record.push)


def remove_consumers(sim: Simulator) -> None:
    """Deletes every other consumer, and lets unused ones expire."""
    for key in sorted(sim.consumers)[::2]:
        if key in sim.consumers:
            sim.removals.remove(sim, sim.consumers[key])
    sim.pass_time(4 * SECOND_NS)


def pull_everything(sim: Simulator) -> None:
    """Pulls and acks until nothing arrives."""
    lag = -1
    for _ in range(400):
        busy = False
        for record in list(sim.consumers.values()):
            while record.outstanding:
                reply, seq = record.outstanding.pop(0)
                if record.policy != "none":
                    sim.ack(record, reply, seq, b"+ACK", double=True)
                busy = True
            if not record.push:
                sim.pull(record.stream, record.name, {"batch": 100, "no_wait": True})
        before = sim.deliveries
        sim.tick()
        if sim.deliveries == before and not busy:
            if sim.finish_tick():
                continue  # messages that waited for a sync may have been delivered just now
            waits = any(sim.engine.streams[s].consumers[n].state.num_pending for s, n in sim.consumers)
            lag, before_lag = lag_of(sim), lag
            if not waits and lag in (0, before_lag):
                break
            sim.pass_time(6 * SECOND_NS)


def _consumer(sim: Simulator, record: ConsumerRecord) -> ConsumerReplica:
    return sim.engine.streams[record.stream].consumers[record.name]


def check_drained(sim: Simulator, record: ConsumerRecord) -> None:
    """Checks that a consumer got all its messages."""
    if record.policy != "explicit" or not record.simple_start:
        return
    consumer = _consumer(sim, record)
    held = sim.streams[record.stream].live.values()
    if record.key_token and not record.rewired:
        # The earlier deliveries of one that came back after its removal are unknown; it is checked by what
        # follows.
        start = max(record.start, record.recovered + 1) if record.was_removed else record.start
        missing = [one.seq for one in held if one.seq >= start and one.seq not in record.came]
        missing = [seq for seq in missing if record.wants(sim.streams[record.stream].live[seq].subject)]
        missing = [seq for seq in missing if seq not in record.passed]
    else:
        after = max(consumer.meta.start_seq - 1, consumer.state.delivered_stream)
        missing = [one.seq for one in held if one.seq > after and record.wants(one.subject)]
    require(not missing, "until acked", f"{record.stream} > {record.name}: {missing} never came")
    if not record.max_deliver:
        pending = consumer.state.pending()
        require(not pending, "until acked", f"{record.stream} > {record.name}: {pending} are still pending")
