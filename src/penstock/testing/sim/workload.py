"""Client actions: each draws its details from its Random and runs in a simulator.

Rejected: a list of prepared operations (useful actions depend on the present state).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from penstock.jetstream.consumer.consumer_config import KEY_TOKEN
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.dead_letters import METADATA_KEY
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.testing.sim import require, thorough_checks
from penstock.testing.sim.batchwork import any_stream_with, new_publish, publish_atomic, publish_fast
from penstock.testing.sim.consumer_checks import ConsumerRecord, pending_of
from penstock.testing.sim.copywork import (
    check_copies,
    is_open,
    lag_of,
    root_of,
    target_config,
    target_name,
    target_update,
)
from penstock.testing.sim.counter_checks import INCREMENTS, Counters, counter_config
from penstock.testing.sim.dead_letter_checks import CONFIG, LETTERS
from penstock.testing.sim.feature_checks import feature
from penstock.testing.sim.schedule_checks import is_schedule, schedule_headers
from penstock.testing.sim.simulator import SECOND_NS, Simulator
from penstock.testing.sim.stream_checks import TAG, SimPublish, StreamRecord
from penstock.testing.sim.transform_checks import renaming_config

STREAMS = ("A", "B", "C")
CONSUMERS = ("one", "two", "three")
TOKENS = ("x", "y", "z.1", "z.2", "w.q")
FILTERS = ("x", "z.*", "z.>", "y", "w.q", "t.>")

OWN_HEADER = b"NATS/1.0\r\nX-Own: 1\r\n\r\n"

Action = Callable[[Simulator, Random], None]


# --- streams


def stream_config(name: str, random: Random) -> dict[str, Any]:
    """A configuration, mostly a valid one."""
    pick = random.choice
    config: dict[str, Any] = {
        "name": name,
        "subjects": [f"{name}.>"],
        "storage": "memory" if random.random() < 0.12 else "file",
        "retention": pick(["limits"] * 5 + ["interest", "workqueue"]),
        "max_msgs": pick([-1, -1, -1, 4, 15]),
        "max_bytes": pick([-1, -1, -1, 1200]),
        "max_msgs_per_subject": pick([-1, -1, -1, 1, 3]),
        "max_age": pick([0, 0, 0, 2 * SECOND_NS, 30 * SECOND_NS]),
        "duplicate_window": pick([SECOND_NS, 60 * SECOND_NS]),
        "discard": pick(["old", "old", "old", "new"]),
        "allow_direct": random.random() < 0.5,
        "allow_rollup_hdrs": random.random() < 0.4,
        "no_ack": random.random() < 0.05,
    }
    if config["max_age"]:
        config["duplicate_window"] = min(config["duplicate_window"], config["max_age"])
    if random.random() < 0.3:
        config["allow_msg_ttl"] = True
        if random.random() < 0.5:
            config["subject_delete_marker_ttl"] = 2 * SECOND_NS
            config["allow_rollup_hdrs"] = True
    if config["discard"] == "new" and config["max_msgs_per_subject"] > 0 and random.random() < 0.5:
        config["discard_new_per_subject"] = True
    if random.random() < 0.05:
        config["max_msg_size"] = 100
    if random.random() < 0.05:
        config["deny_delete"] = True
    if random.random() < 0.05:
        config["first_seq"] = random.randrange(1, 1000)
    if random.random() < 0.25:
        config["compression"] = "s2"
    config |= renaming_config(name, random)
    config["allow_atomic"] = random.random() < 0.7
    config["allow_batched"] = random.random() < 0.5
    if random.random() < 0.15:
        return counter_config(config, random)
    config["allow_msg_schedules"] = config["discard"] == "old" and random.random() < 0.35
    return config


def create_dead_letter_stream(sim: Simulator) -> None:
    """Creates the stream of dead letters, for the whole run."""
    sim.api(f"STREAM.CREATE.{LETTERS}", CONFIG, ("create", LETTERS))


def create_stream(sim: Simulator, random: Random) -> None:
    name = random.choice(STREAMS)
    if name in sim.streams or sim.removals.ask_again(sim, name):
        return
    sim.api(f"STREAM.CREATE.{name}", stream_config(name, random), ("create", name))


def create_target(sim: Simulator, random: Random) -> None:
    """Creates a mirror, or a stream with sources, of existing streams."""
    name = target_name(random)
    if not sim.has_copies or name in sim.streams or len(sim.streams) < 2:
        return
    if sim.removals.ask_again(sim, name):
        return
    config = target_config(sim, plain_config(name, random), random, closed=random.random() < 0.4)
    sim.api(f"STREAM.CREATE.{name}", config, ("create", name))


def plain_config(name: str, random: Random) -> dict[str, Any]:
    """A configuration without counters."""
    config = stream_config(name, random)
    while config.get("allow_msg_counter"):
        config = stream_config(name, random)
    return config


def update_stream(sim: Simulator, random: Random) -> None:
    record = any_stream(sim, random)
    if record is None:
        return
    config = stream_config(record.name, random)
    if record.copies is not None:
        config = target_update(sim, record, plain_config(record.name, random), random)
    for kept in ("storage", "retention", "first_seq", "allow_msg_ttl", "deny_delete"):
        config.pop(kept, None)
    present = sim.stream(record.name).config
    if present.allow_msg_counter:
        config = counter_config(config, random)
    config["allow_msg_counter"] = present.allow_msg_counter
    config["allow_msg_schedules"] = present.allow_msg_schedules
    if present.allow_msg_schedules:
        config["discard"] = "old"
        config.pop("discard_new_per_subject", None)
    # else the next response to fast batches without responses covers all of them
    config["no_ack"] = present.no_ack
    config["storage"] = present.storage.value
    config["retention"] = present.retention.value
    config["allow_msg_ttl"] = present.allow_msg_ttl
    config["deny_delete"] = present.deny_delete
    config["allow_atomic"], config["allow_batched"] = present.allow_atomic, present.allow_batched
    if present.first_seq:
        config["first_seq"] = present.first_seq
    record.limits_changed = True
    sim.api(f"STREAM.UPDATE.{record.name}", config, ("update", record.name))


def delete_stream(sim: Simulator, random: Random) -> None:
    record = any_stream(sim, random)
    if record is not None and random.random() < 0.4:
        answer = sim.api(f"STREAM.DELETE.{record.name}", b"", ("delete", record.name))
        if "error" not in answer:
            require(record.name not in sim.engine.streams, "delete", f"{record.name} is still there")


def recreate_stream(sim: Simulator, random: Random) -> None:
    """Deletes a stream and creates another one of the name at once: background work of the first may be in
    flight."""
    record = any_stream(sim, random)
    if record is None or record.copies is not None:
        return
    publish_one(sim, random, record)
    sim.tick(whole=random.random() < 0.5)
    answer = sim.api(f"STREAM.DELETE.{record.name}", b"", ("delete", record.name))
    if "error" in answer or record.name in sim.streams:
        return
    sim.api(f"STREAM.CREATE.{record.name}", stream_config(record.name, random), ("create", record.name))
    made = sim.streams.get(record.name)
    if made is not None:
        for _ in range(random.randrange(4)):
            publish_one(sim, random, made)
            sim.tick()


def purge(sim: Simulator, random: Random) -> None:
    record = any_stream(sim, random)
    if record is None:
        return
    body: dict[str, Any] = {}
    subject = ""
    if random.random() < 0.6:
        subject = body["filter"] = f"{root_of(record, random)}.{random.choice(FILTERS)}"
    how = random.random()
    upto = 0
    if how < 0.3:
        upto = body["seq"] = random.randrange(1, record.last_seq + 3)
    elif how < 0.5:
        body["keep"] = random.randrange(1, 4)
    record.asked.append(("purge", (subject, upto)))
    sim.api(f"STREAM.PURGE.{record.name}", body)


def delete_message(sim: Simulator, random: Random) -> None:
    record = any_stream(sim, random)
    if record is None or not record.live:
        return
    seq = random.choice([min(record.live), max(record.live), random.choice(list(record.live))])
    record.asked.append(("delete", seq))
    no_erase = random.random() < 0.5
    answer = sim.api(f"STREAM.MSG.DELETE.{record.name}", {"seq": seq, "no_erase": no_erase})
    if answer.get("success"):
        if not no_erase:
            sim.erased.promise(record, seq)
        require(seq not in record.live, "delete", f"{record.name}: {seq} is still there")


def get_message(sim: Simulator, random: Random) -> None:
    record = any_stream(sim, random)
    if record is None or not record.last_seq:
        return
    if random.random() < 0.5:
        seq = random.randrange(1, record.last_seq + 2)
        expected = record.live.get(seq)
        body: dict[str, Any] = {"seq": seq}
    else:
        subject = f"{root_of(record, random)}.{random.choice(TOKENS)}"
        body = {"last_by_subj": subject}
        found = [held for held in record.live.values() if held.subject == subject]
        expected = found[-1] if found else None
    # Waiting publishes are stored before the response, and a mirror may remove them from a work queue at
    # once.
    before = set(record.live), record.last_seq
    answer = sim.api(f"STREAM.MSG.GET.{record.name}", body)
    if record.name not in sim.streams or (set(record.live), record.last_seq) != before:
        return
    got = answer.get("message", {}).get("seq")
    wanted = expected.seq if expected is not None else None
    require(got == wanted, "reads", f"{record.name} {body}: {got} instead of {wanted}")


def any_stream(sim: Simulator, random: Random) -> StreamRecord | None:
    """A random stream, or None."""
    names = sorted(sim.streams.keys() - {LETTERS})
    return sim.streams[random.choice(names)] if names else None


def any_open_stream(sim: Simulator, random: Random) -> StreamRecord | None:
    """A random stream that accepts publishes, or None."""
    names = [name for name in sorted(sim.streams.keys() - {LETTERS}) if is_open(sim.streams[name])]
    return sim.streams[random.choice(names)] if names else None


# --- publishes


def publish_some(sim: Simulator, random: Random) -> None:
    """Publishes a burst within one tick."""
    for _ in range(random.choice([1, 1, 2, 5, 12])):
        record = any_open_stream(sim, random)
        if record is None:
            return
        publish_one(sim, random, record)
    if random.random() < 0.9:
        sim.tick()


def count(sim: Simulator, random: Random, record: StreamRecord) -> None:
    """Increments a counter."""
    publish = new_publish(sim, record, random.choice(TOKENS))
    pairs = [(headers.INCR, random.choice(INCREMENTS)), (TAG, f"{publish.tag:08d}")]
    publish.increment = pairs[0][1]
    if random.random() < 0.1:
        publish.msg_id = b"m%d" % random.randrange(30)
        pairs.append((headers.MSG_ID, publish.msg_id.decode()))
    feature(record, Counters).sent.append(publish)
    sim.publish(publish, headers.build(pairs), 0, reply=True)


def schedule(sim: Simulator, random: Random) -> None:
    """Publishes a schedule."""
    record = any_stream_with(sim, random, "allow_msg_schedules")
    if record is None:
        return
    publish = new_publish(sim, record, f"s.{random.choice(TOKENS[:3])}")
    publish.plain, publish.rollup = False, "sub"
    pairs = schedule_headers(record.name, sim.now, random, ttls=record.config.allow_msg_ttl)
    sim.publish(publish, headers.build(pairs), 5, reply=True)
    if random.random() < 0.9:
        sim.tick()


def publish_one(sim: Simulator, random: Random, record: StreamRecord) -> None:
    if record.config.allow_msg_counter and random.random() < 0.95:
        count(sim, random, record)
        return
    publish = new_publish(sim, record, random.choice(TOKENS))
    block = publish_header(publish, record, random)
    publish.plain = (
        not block
        or block == b"NATS/1.0\r\nX-Own: 1\r\n\r\n"
        or (block.count(b"\r\n") == 3 and bool(publish.msg_id))
    )
    sim.publish(publish, block, random.choice([0, 5, 30, 30, 120]), reply=random.random() < 0.85)


def publish_header(publish: SimPublish, record: StreamRecord, random: Random) -> bytes:
    kind = random.random()
    pairs: list[tuple[str, str]] = []
    if kind < 0.45:
        return b""
    if kind < 0.52:
        return OWN_HEADER
    if kind < 0.75:
        publish.msg_id = b"m%d" % random.randrange(30)
        pairs.append((headers.MSG_ID, publish.msg_id.decode()))
    elif kind < 0.82:
        expected = record.last_seq + random.choice([0, 0, 0, 1, -1])
        publish.expect = (max(expected, 0), False)
        pairs.append((headers.EXPECTED_LAST_SEQUENCE, str(max(expected, 0))))
    elif kind < 0.88:
        last = max((h.seq for h in record.live.values() if h.subject == publish.subject), default=0)
        expected = last + random.choice([0, 0, 1])
        publish.expect = (expected, True)
        pairs.append((headers.EXPECTED_LAST_SUBJECT_SEQUENCE, str(expected)))
    elif kind < 0.95:
        pairs.append((headers.TTL, random.choice(["1", "3s", "never", "60"])))
    else:
        publish.rollup = random.choice(["sub", "sub", "all"])
        pairs.append((headers.ROLLUP, publish.rollup))
    return headers.build(pairs)


# --- consumers


def consumer_config(sim: Simulator, record: StreamRecord, name: str, random: Random) -> dict[str, Any]:
    pick = random.choice
    config: dict[str, Any] = {
        "name": name,
        "durable_name": name,
        "ack_policy": pick(["explicit"] * 4 + ["all", "none"]),
        "deliver_policy": pick(["all"] * 3 + ["last", "new", "last_per_subject", "by_start_sequence"]),
        "ack_wait": pick([SECOND_NS, 5 * SECOND_NS]),
        "max_deliver": pick([-1, -1, -1, 2, 3]),
        "max_ack_pending": pick([-1, 2, 10, 1000]),
    }
    if record.config.retention.value == "workqueue":
        config["ack_policy"], config["deliver_policy"] = "explicit", "all"
    if config["deliver_policy"] == "by_start_sequence":
        config["opt_start_seq"] = random.randrange(1, record.last_seq + 3)
    if random.random() < 0.4 or config["deliver_policy"] == "last_per_subject":
        config["filter_subject"] = f"{root_of(record, random)}.{pick(FILTERS)}"
    elif random.random() < 0.15:
        root = root_of(record, random)
        config["filter_subjects"] = [f"{root}.x", f"{root}.z.>"]
    if random.random() < 0.25:
        config["deliver_subject"] = f"push.{record.name}.{name}"
        config["flow_control"] = random.random() < 0.2
        if config["flow_control"] or random.random() < 0.2:
            config["idle_heartbeat"] = SECOND_NS
    if config["ack_policy"] == "none":
        for useless in ("max_deliver", "ack_wait", "max_ack_pending"):
            del config[useless]
    elif config["max_deliver"] == 3 and random.random() < 0.5:
        config["backoff"] = [SECOND_NS, 2 * SECOND_NS]
    if random.random() < 0.15:
        del config["durable_name"]
        config["inactive_threshold"] = 3 * SECOND_NS
    if random.random() < 0.1:
        config["mem_storage"] = True
    if config["ack_policy"] == "explicit":
        config["metadata"] = {}
        if random.random() < 0.6:
            config["metadata"][METADATA_KEY] = f"{LETTERS}.{record.name}.{name}"
        if random.random() < 0.25:
            config["metadata"][KEY_TOKEN] = "2"
    if random.random() < 0.1:
        config["headers_only"] = True
    return config


def create_consumer(sim: Simulator, random: Random) -> None:
    record = any_stream(sim, random)
    if record is None:
        return
    name = random.choice(CONSUMERS)
    if sim.removals.ask_again(sim, record.name, name):
        return
    _create_consumer(sim, random, record, name, consumer_config(sim, record, name, random))


def _create_consumer(
    sim: Simulator, random: Random, record: StreamRecord, name: str, config: dict[str, Any]
) -> None:
    key = (record.name, name)
    answer = sim.api(
        f"CONSUMER.CREATE.{record.name}.{name}", {"stream_name": record.name, "config": config}, key
    )
    if config.get("deliver_subject") and random.random() < 0.7:
        sim.bind(config["deliver_subject"])
    stream = sim.engine.streams.get(record.name)
    if "error" not in answer and answer and stream is not None and name in stream.consumers:
        sim.meet(record.name, name, answer)


def delete_consumer(sim: Simulator, random: Random) -> None:
    record = any_consumer(sim, random)
    if record is not None and random.random() < 0.5:
        sim.removals.remove(sim, record)


def recreate_consumer(sim: Simulator, random: Random) -> None:
    """Deletes a consumer and creates another one of the name at once."""
    record = any_consumer(sim, random)
    if record is None:
        return
    sim.removals.remove(sim, record)
    stream = sim.streams.get(record.stream)
    if record.key not in sim.consumers and stream is not None:
        _create_consumer(sim, random, stream, record.name, dict(record.config))


def pause_consumer(sim: Simulator, random: Random) -> None:
    record = any_consumer(sim, random)
    if record is not None:
        until = sim.now + random.randrange(5) * SECOND_NS
        sim.api(f"CONSUMER.PAUSE.{record.stream}.{record.name}", {"pause_until": format_time(until)})


def toggle_interest(sim: Simulator, random: Random) -> None:
    """Subscribes to a push consumer's deliver subject, or unsubscribes."""
    record = any_consumer(sim, random)
    if record is not None and record.push:
        sim.say(f"interest in {record.push} changes")
        if random.random() < 0.6:
            sim.bind(record.push)
        else:
            sim.unbind(record.push)
        sim.tick()


def pull(sim: Simulator, random: Random) -> None:
    record = any_consumer(sim, random)
    if record is None or record.push:
        return
    body: dict[str, Any] = {"batch": random.choice([1, 3, 10, 50])}
    if random.random() < 0.3:
        body["no_wait"] = True
    if random.random() < 0.6:
        body["expires"] = random.choice([1, 4]) * SECOND_NS
    if random.random() < 0.1:
        body["max_bytes"] = 200
    sim.say(f"pull {record.stream} > {record.name} {body}")
    sim.pull(record.stream, record.name, body)
    sim.tick()


def ack_some(sim: Simulator, random: Random) -> None:
    """Acks some deliveries, in one tick."""
    for record in list(sim.consumers.values()):
        if not record.outstanding or record.policy == "none":
            continue
        for _ in range(random.randrange(1, 6)):
            if not record.outstanding:
                break
            at = random.randrange(len(record.outstanding)) if random.random() < 0.5 else 0
            reply, seq = record.outstanding.pop(at)
            body = random.choice(
                [b"+ACK"] * 8
                + [b"-NAK", b'-NAK {"delay": 1500000000}', b"+WPI", b"+TERM", b"+TERM", b'+NXT {"batch": 2}']
            )
            if record.push and body.startswith(b"+NXT"):
                body = b"+ACK"
            if not body.startswith((b"+ACK", b"+TERM", b"+NXT")) and record.policy == "all":
                body = b"+ACK"
            double = random.random() < 0.4
            sim.say(f"ack {record.stream} > {record.name} {seq} {body.decode()}{' double' if double else ''}")
            sim.ack(record, reply, seq, body, double=double)
    sim.tick()


def terminate_some(sim: Simulator, random: Random) -> None:
    """Terminates deliveries of a consumer with dead letters, which may be in flight during later actions."""
    records = [one for one in sim.consumers.values() if one.dead_letter]
    if not records:
        return
    record = random.choice(records)
    if not record.push:
        sim.pull(record.stream, record.name, {"batch": 5, "no_wait": True})
        sim.tick()
    for reply, seq in record.outstanding[:3]:
        sim.say(f"ack {record.stream} > {record.name} {seq} +TERM")
        sim.ack(record, reply, seq, b"+TERM too bad", double=random.random() < 0.5)
    del record.outstanding[:3]
    for _ in range(random.randrange(3)):
        sim.tick()


def any_consumer(sim: Simulator, random: Random) -> ConsumerRecord | None:
    """A random consumer, or None."""
    keys = sorted(sim.consumers)
    return sim.consumers[random.choice(keys)] if keys else None


# --- time and faults


def pass_time(sim: Simulator, random: Random) -> None:
    ns = random.choice([1_000_000, SECOND_NS // 2, SECOND_NS, 3 * SECOND_NS, 25 * SECOND_NS])
    sim.say(f"{ns / 1e9} s pass")
    sim.pass_time(ns)


def check_all(sim: Simulator, random: Random) -> None:
    thorough_checks.check_all(sim)


def fail_disk(sim: Simulator, random: Random) -> None:
    """Makes the disk full, makes it fail at times, or repairs it."""
    disk = sim.disk
    if disk.room is not None or disk.fail_rate:
        heal_disk(sim)
    elif random.random() < 0.6:
        disk.room = random.choice([0, 10, 300])
        sim.say(f"the disk has room for {disk.room} bytes")
    else:
        disk.fail_rate = random.choice([0.05, 0.3])
        sim.say(f"the disk fails, {disk.fail_rate}")


def fill_disk(sim: Simulator, random: Random) -> None:
    """The disk is full, or has room again."""
    disk = sim.disk
    if disk.room is not None:
        heal_disk(sim)
    else:
        disk.room = random.choice([0, 10, 300])
        sim.say(f"the disk has room for {disk.room} bytes")


def schedule_on_a_full_disk(sim: Simulator, random: Random) -> None:
    """Schedules come due together when the disk is full, and the stream holds nothing else."""
    record = any_stream_with(sim, random, "allow_msg_schedules")
    if record is None:
        return
    heal_disk(sim)
    if record.name not in sim.streams:
        return
    record.asked.append(("purge", ("", 0)))
    sim.api(f"STREAM.PURGE.{record.name}", {})
    for token in random.sample(TOKENS, 3):
        publish = new_publish(sim, record, f"s.{token}")
        publish.plain, publish.rollup = False, "sub"
        pairs = [
            (headers.SCHEDULE, f"@at {format_time(sim.now + SECOND_NS)}"),
            (headers.SCHEDULE_TARGET, f"{record.name}.{random.choice('xy')}"),
        ]
        sim.publish(publish, headers.build(pairs), 5, reply=True)
    sim.tick(whole=True)
    fill_disk(sim, random)
    sim.pass_time(random.choice([1, 3]) * SECOND_NS)


def purge_on_a_full_disk(sim: Simulator, random: Random) -> None:
    """A stream is purged when the disk is full, and a sync of it may be in flight."""
    record = any_open_stream(sim, random)
    if record is None:
        return
    heal_disk(sim)
    if record.name not in sim.streams:
        return
    for left in reversed(range(random.randrange(2, 6))):
        publish_one(sim, random, record)
        sim.tick(whole=left > 0)
    fill_disk(sim, random)
    record.asked.append(("purge", ("", 0)))
    sim.api(f"STREAM.PURGE.{record.name}", {})


def heal_disk(sim: Simulator) -> None:
    """Repairs the disk, and waits for the server's retry."""
    if sim.disk.room is not None or sim.disk.fail_rate:
        sim.disk.room, sim.disk.fail_rate = None, 0.0
        sim.say("the disk works")
        sim.pass_time(2 * SECOND_NS)
        sim.removals.ask_again(sim)


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


# --- the end


def drain(sim: Simulator) -> None:
    """Pulls and acks until nothing arrives; then checks that everything was delivered."""
    for stream in list(sim.streams.values()):
        for subject in {held.subject for held in stream.live.values() if is_schedule(held)}:
            stream.asked.append(("purge", (subject, 0)))
            sim.api(f"STREAM.PURGE.{stream.name}", {"filter": subject})
    for key in list(sim.consumers):
        if key in sim.consumers:
            sim.api(f"CONSUMER.PAUSE.{key[0]}.{key[1]}", {})
    for record in sim.consumers.values():
        if record.push:
            sim.bind(record.push)
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
