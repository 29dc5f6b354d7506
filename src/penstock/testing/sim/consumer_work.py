"""Client actions on consumers: configurations, pulls and acks.

Each action draws its details from its Random and runs in a simulator (workload.py)."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.jetstream.consumer.consumer_config import DEAD_LETTER_KEY, KEY_TOKEN
from penstock.protocol.durations import format_time
from penstock.testing.sim import pin_checks
from penstock.testing.sim.consumer_checks import ConsumerRecord
from penstock.testing.sim.copywork import (
    root_of,
)
from penstock.testing.sim.dead_letter_checks import LETTERS
from penstock.testing.sim.simulator import SECOND_NS, Simulator
from penstock.testing.sim.stream_checks import StreamRecord
from penstock.testing.sim.stream_work import FILTERS, any_stream

CONSUMERS = ("one", "two", "three")


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
            config["metadata"][DEAD_LETTER_KEY] = f"{LETTERS}.{record.name}.{name}"
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
    config = consumer_config(sim, record, name, random)
    if sim.has_groups and "deliver_subject" not in config and random.random() < 0.6:
        config |= pin_checks.CONFIG
    _create_consumer(sim, random, record, name, config)


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


def reset_consumer(sim: Simulator, random: Random) -> None:
    """Lets a consumer start over at a sequence, or above its ack floor."""
    record = any_consumer(sim, random)
    if record is None:
        return
    last = sim.streams[record.stream].last_seq
    body = {"seq": random.randrange(1, last + 6)} if random.random() < 0.7 else {}
    consumer = sim.engine.streams[record.stream].consumers[record.name]
    resets = consumer.state.resets
    was_resetting, record.is_resetting = record.is_resetting, True
    answer = sim.api(f"CONSUMER.RESET.{record.stream}.{record.name}", body, record.key)
    known = sim.consumers.get(record.key)
    if known is None or known.created != record.created:
        return
    if "error" not in answer:
        if known is record:
            sim.start_over(record)
        else:
            known.is_resetting = False
    elif sim.faulty():
        # The server has it, and the disk may not.
        if known is record and consumer.state.resets != resets:
            known = sim.start_over(record)
        known.is_resetting = True
    else:
        record.is_resetting = was_resetting


def unpin(sim: Simulator, random: Random) -> None:
    """Ends the pin of a consumer's client."""
    records = [one for one in sim.consumers.values() if pin_checks.has_pins(one)]
    if not records:
        return
    record = random.choice(records)
    sim.pins.unpinning(record)
    sim.api(f"CONSUMER.UNPIN.{record.stream}.{record.name}", {"group": pin_checks.GROUP})
    sim.pins.unpinning_ended(record)


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
    sim.pull(record.stream, record.name, body, random)
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
            if (record.push or pin_checks.has_pins(record)) and body.startswith(b"+NXT"):
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
