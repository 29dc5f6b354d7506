"""Client actions on streams and their messages: configurations, publishes, purges and deletes.

Each action draws its details from its Random and runs in a simulator (workload.py)."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.protocol import headers
from penstock.testing.sim import require
from penstock.testing.sim.batchwork import any_stream_with, new_publish
from penstock.testing.sim.copywork import (
    is_open,
    root_of,
    target_config,
    target_name,
    target_update,
)
from penstock.testing.sim.counter_checks import INCREMENTS, Counters, counter_config
from penstock.testing.sim.dead_letter_checks import CONFIG, LETTERS
from penstock.testing.sim.feature_checks import feature
from penstock.testing.sim.schedule_checks import schedule_headers
from penstock.testing.sim.simulator import SECOND_NS, Simulator
from penstock.testing.sim.stream_checks import TAG, TTLS, SimPublish, StreamRecord
from penstock.testing.sim.transform_checks import renaming_config

STREAMS = ("A", "B", "C")
FILTERS = ("x", "z.*", "z.>", "y", "w.q", "t.>")
TOKENS = ("x", "y", "z.1", "z.2", "w.q")
OWN_HEADER = b"NATS/1.0\r\nX-Own: 1\r\n\r\n"


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
    _create(sim, random, {})


def create_compressed_stream(sim: Simulator, random: Random) -> None:
    """Creates a stream whose full blocks are compressed."""
    _create(sim, random, {"compression": "s2", "storage": "file", "deny_delete": False})


def _create(sim: Simulator, random: Random, fields: dict[str, Any]) -> None:
    name = random.choice(STREAMS)
    if name in sim.streams or sim.removals.ask_again(sim, name):
        return
    sim.api(f"STREAM.CREATE.{name}", stream_config(name, random) | fields, ("create", name))


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
    _delete(sim, record, seq, no_erase=random.random() < 0.5)


def erase_newest(sim: Simulator, random: Random) -> None:
    """Erases one of the last messages: its block is likely to be open still."""
    record = any_stream(sim, random)
    if record is None or not record.live:
        return
    seq = random.choice(sorted(record.live)[-3:])
    _delete(sim, record, seq, no_erase=False)


def _delete(sim: Simulator, record: StreamRecord, seq: int, *, no_erase: bool) -> None:
    record.asked.append(("delete", seq))
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


def publish_alike(sim: Simulator, random: Random) -> None:
    """Publishes messages whose records have one length, each in a tick: where one of them was lost, another
    one fits exactly."""
    record = any_open_stream(sim, random)
    for _ in range(random.choice([1, 2, 3, 4])):
        if record is None or record.name not in sim.streams:
            return
        sim.publish(new_publish(sim, record, random.choice("xy")), b"", 30, reply=True)
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
        pairs.append(publish.expire_after(random.choice(TTLS)))
    else:
        publish.rollup = random.choice(["sub", "sub", "all"])
        pairs.append((headers.ROLLUP, publish.rollup))
    return headers.build(pairs)
