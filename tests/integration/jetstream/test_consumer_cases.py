"""Consumers: one test for each feature, with its error codes, on both servers.

Acks and redelivery are in test_consumer_ack_cases.py.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.errors
import pytest

from tests.support.consumer_talk import (
    MS,
    NOW,
    QUIET_S,
    SECOND,
    ConsumerTalk,
    headers_of,
    quiet,
    sequence,
    sequences,
    status,
)
from tests.support.nats_servers import until
from tests.support.talk import code


@pytest.mark.feature("consumer.pull")
async def test_a_pull_ends_when_it_has_enough_or_its_time_is_over(talk: ConsumerTalk) -> None:
    """Batch, expires, max_bytes, no_wait, idle_heartbeat."""
    await talk.consumer("c")
    await talk.fill(5)
    assert sequences(await talk.pull("c")) == [1]
    assert sequences(await talk.pull("c", b"2")) == [2, 3]
    *messages, end = await talk.pull("c", {"batch": 3, "expires": 300 * MS, "idle_heartbeat": 100 * MS})
    assert sequences(messages) == [4, 5]
    assert "100 Idle Heartbeat" in [status(message) for message in messages]
    assert status(end) == "408 Request Timeout"
    assert headers_of(end)["Nats-Pending-Messages"] == "1"
    assert [status(message) for message in await talk.pull("c", NOW)] == ["404 No Messages"]
    await talk.fill(1)
    [end] = await talk.pull("c", {"batch": 1, "expires": SECOND, "max_bytes": 10})
    assert status(end) == "409 Message Size Exceeds MaxBytes"


@pytest.mark.feature("consumer.push")
async def test_a_push_consumer_delivers_while_a_client_listens(talk: ConsumerTalk) -> None:
    await talk.fill(4)
    await talk.consumer("alone", deliver_subject=f"to.{talk.name}")
    await asyncio.sleep(QUIET_S)
    info = await talk.info("alone")
    assert (info["num_pending"], info["delivered"]["consumer_seq"]) == (4, 0)
    assert not info.get("push_bound", False)
    listening = await talk.client.subscribe(f"to.{talk.name}")
    assert [sequence(await listening.next_msg(timeout=5)) for _ in range(4)] == [1, 2, 3, 4]
    assert (await talk.info("alone"))["push_bound"]

    await talk.consumer("group", deliver_subject=f"g.{talk.name}", deliver_group="q", durable_name="group")
    apart = await talk.client.subscribe(f"g.{talk.name}")
    shared: list[int] = []

    async def take(message: Any) -> None:
        shared.append(sequence(message))

    for _ in range(2):
        await talk.client.subscribe(f"g.{talk.name}", queue="q", cb=take)
    await until(lambda: len(shared) == 4)
    assert sorted(shared) == [1, 2, 3, 4]
    assert [sequence(await apart.next_msg(timeout=5)) for _ in range(4)] == [1, 2, 3, 4]
    await quiet(apart)


@pytest.mark.feature("consumer.durable-ephemeral", "consumer.inactive-threshold")
async def test_a_consumer_without_a_durable_name_goes_when_no_client_uses_it(talk: ConsumerTalk) -> None:
    """Error 10153."""
    body = {"stream_name": talk.name, "config": {"ack_policy": "explicit"}}
    made = await talk.api(f"CONSUMER.CREATE.{talk.name}", body)
    assert made["config"]["inactive_threshold"] == 5 * SECOND
    assert made["name"] and "durable_name" not in made["config"]
    await talk.consumer("brief", inactive_threshold=100 * MS)
    await talk.consumer("durable", durable_name="durable", inactive_threshold=100 * MS)
    await talk.consumer("stays", durable_name="stays")

    async def both_went() -> bool:
        return set((await talk.api(f"CONSUMER.NAMES.{talk.name}"))["consumers"]) == {made["name"], "stays"}

    await until(both_went)
    limited = ConsumerTalk(talk.client)
    await limited.create(consumer_limits={"inactive_threshold": SECOND, "max_ack_pending": 10})
    assert code(await limited.consumer("c", inactive_threshold=2 * SECOND)) == 10153
    assert code(await limited.consumer("c", max_ack_pending=11)) == 10121
    taken = await limited.consumer("c")
    assert (taken["config"]["inactive_threshold"], taken["config"]["max_ack_pending"]) == (SECOND, 10)


@pytest.mark.feature("consumer.create-update")
async def test_consumers_are_created_updated_or_either(talk: ConsumerTalk) -> None:
    """Errors 10148, 10149 and 10012."""

    async def act(action: str, **config: Any) -> Any:
        body = {"stream_name": talk.name, "action": action, "config": {"name": "c", "durable_name": "c"}}
        body["config"] |= {"ack_policy": "explicit", **config}  # type: ignore[operator]
        return await talk.api(f"CONSUMER.CREATE.{talk.name}.c", body)

    assert code(await act("update")) == 10149
    assert code(await act("create")) == 0
    assert code(await act("create")) == 0
    assert code(await act("create", max_deliver=3)) == 10148
    assert (await act("update", max_deliver=3))["config"]["max_deliver"] == 3
    assert (await act("", max_deliver=4))["config"]["max_deliver"] == 4
    assert code(await act("", ack_policy="all")) == 10012


@pytest.mark.feature("stream.replay", "consumer.deliver-policy")
async def test_six_places_to_start_at(talk: ConsumerTalk) -> None:
    """Error 10094."""
    for token in ("a", "b", "a", "b"):
        await talk.pub(token)
    middle = (await talk.api(f"STREAM.MSG.GET.{talk.name}", {"seq": 3}))["message"]["time"]
    filters = {"filter_subject": f"{talk.name}.>"}
    starts: tuple[tuple[str, dict[str, Any], list[int]], ...] = (
        ("all", {}, [1, 2, 3, 4, 5]),
        ("last", {}, [4, 5]),
        ("last", {"filter_subject": f"{talk.name}.a"}, [3, 5]),
        ("last_per_subject", filters, [3, 4, 5]),
        ("new", {}, [5]),
        ("by_start_sequence", {"opt_start_seq": 3}, [3, 4, 5]),
        ("by_start_time", {"opt_start_time": middle}, [3, 4, 5]),
    )
    for number, (policy, config, _) in enumerate(starts):
        await talk.consumer(f"c{number}", deliver_policy=policy, **config)
    await talk.pub("a")
    for number, (_, _, expected) in enumerate(starts):
        assert sequences(await talk.pull(f"c{number}", NOW)) == expected
    assert code(await talk.consumer("x", deliver_policy="last_per_subject")) == 10094
    assert code(await talk.consumer("x", deliver_policy="by_start_sequence")) == 10094
    assert code(await talk.consumer("x", deliver_policy="by_start_time")) == 10094
    assert code(await talk.consumer("x", deliver_policy="all", opt_start_seq=3)) == 10094


@pytest.mark.feature("consumer.start-once")
async def test_where_to_start_is_said_once(talk: ConsumerTalk) -> None:
    """A client that returns continues after the ack floor."""
    await talk.fill(4)
    config = {"durable_name": "c", "deliver_policy": "by_start_sequence", "opt_start_seq": 2}
    await talk.consumer("c", **config, ack_wait=300 * MS)
    first, _ = await talk.pull("c", b"2")
    await talk.client.request(first.reply, b"+ACK", timeout=5)
    again = await talk.consumer("c", **config, ack_wait=300 * MS)
    assert again["ack_floor"]["stream_seq"] == 2
    messages = await talk.pull("c", {"batch": 2, "expires": SECOND})
    assert sorted(sequences(messages)) == [3, 4]


@pytest.mark.feature("consumer.filters")
async def test_a_consumer_takes_the_subjects_it_names(talk: ConsumerTalk) -> None:
    """Errors 10136, 10138 and 10139."""
    a, b = f"{talk.name}.a", f"{talk.name}.b"
    for token in ("a", "b", "c", "b"):
        await talk.pub(token)
    assert code(await talk.consumer("x", filter_subject=a, filter_subjects=[b])) == 10136
    assert code(await talk.consumer("x", filter_subjects=[a, f"{talk.name}.*"])) == 10138
    assert code(await talk.consumer("x", filter_subjects=[""])) == 10139
    await talk.consumer("one", filter_subject=b)
    await talk.consumer("two", filter_subjects=[a, b])
    await talk.consumer("other", filter_subject="elsewhere.>")
    assert sequences(await talk.pull("one", NOW)) == [2, 4]
    assert sequences(await talk.pull("two", NOW)) == [1, 2, 4]
    assert sequences(await talk.pull("other", NOW)) == []
    updated = await talk.consumer("one", filter_subject=f"{talk.name}.c")
    assert updated["config"]["filter_subject"] == f"{talk.name}.c"


@pytest.mark.feature("consumer.replay-policy")
async def test_replay_keeps_the_time_between_messages(talk: ConsumerTalk) -> None:
    for pause_s in (0.0, 0.3, 0.1):
        await asyncio.sleep(pause_s)
        await talk.pub("a")
    loop = asyncio.get_running_loop()
    for policy, least_s, most_s in (("instant", 0.0, 0.2), ("original", 0.36, 0.6)):
        listening = await talk.client.subscribe(f"{policy}.{talk.name}")
        await talk.consumer(policy, deliver_subject=f"{policy}.{talk.name}", replay_policy=policy)
        await listening.next_msg(timeout=5)
        started = loop.time()
        for _ in range(2):
            await listening.next_msg(timeout=5)
        assert least_s <= loop.time() - started < most_s


@pytest.mark.feature("consumer.rate-limit")
async def test_a_rate_limit_slows_a_push_consumer(talk: ConsumerTalk) -> None:
    """Error 10086."""
    assert code(await talk.consumer("x", rate_limit_bps=1000)) == 10086
    await talk.update(max_msg_size=2000)  # so much may leave at once
    for _ in range(40):
        await talk.pub("a", b"x" * 1000)
    listening = await talk.client.subscribe(f"slow.{talk.name}")
    loop = asyncio.get_running_loop()
    started = loop.time()
    await talk.consumer("c", deliver_subject=f"slow.{talk.name}", rate_limit_bps=400_000)
    for _ in range(40):
        await listening.next_msg(timeout=5)
    assert 0.4 < loop.time() - started < 2.0


@pytest.mark.feature("consumer.headers-only")
async def test_a_consumer_may_want_headers_only(talk: ConsumerTalk) -> None:
    await talk.pub("a", b"12345", Color="red")
    await talk.consumer("c", headers_only=True)
    [message] = await talk.pull("c")
    assert (message.data, headers_of(message)) == (b"", {"Color": "red", "Nats-Msg-Size": "5"})


@pytest.mark.feature("consumer.idle-heartbeat")
async def test_a_quiet_push_consumer_shows_that_it_lives(talk: ConsumerTalk) -> None:
    """Error 10083."""
    assert code(await talk.consumer("x", deliver_subject="d", idle_heartbeat=99 * MS)) == 10083
    await talk.fill(2)
    listening = await talk.client.subscribe(f"hb.{talk.name}")
    await talk.consumer("c", deliver_subject=f"hb.{talk.name}", idle_heartbeat=100 * MS)
    assert sequences([await listening.next_msg(timeout=5) for _ in range(2)]) == [1, 2]
    beat = await listening.next_msg(timeout=5)
    assert status(beat) == "100 Idle Heartbeat"
    assert headers_of(beat)["Nats-Last-Consumer"] == headers_of(beat)["Nats-Last-Stream"] == "2"


@pytest.mark.feature("consumer.flow-control")
async def test_flow_control_waits_for_its_answer(talk: ConsumerTalk) -> None:
    """Error 10108."""
    assert code(await talk.consumer("x", deliver_subject="d", flow_control=True)) == 10108
    for _ in range(20):
        await talk.pub("a", b"x" * 100_000)  # the first question comes after 1 MiB
    inbox = f"fc.{talk.name}"
    asked: list[str] = []
    taken: list[int] = []

    async def take(message: Any) -> None:
        if status(message) == "100 FlowControl Request":
            asked.append(message.reply)
            await talk.client.publish(message.reply)
        elif message.reply:
            taken.append(sequence(message))

    await talk.client.subscribe(inbox, cb=take)
    settings = {"flow_control": True, "idle_heartbeat": 200 * MS, "ack_policy": "none"}
    await talk.consumer("c", deliver_subject=inbox, **settings)
    await until(lambda: len(taken) == 20 and bool(asked), 5)
    assert taken == list(range(1, 21))
    assert asked[0].startswith(f"$JS.FC.{talk.name}.c.")


@pytest.mark.feature("consumer.max-waiting")
async def test_no_more_pulls_wait_than_allowed(talk: ConsumerTalk) -> None:
    assert (await talk.consumer("default"))["config"]["max_waiting"] == 512
    await talk.consumer("c", max_waiting=1)
    inboxes = [talk.client.new_inbox() for _ in range(3)]
    waiting = [await talk.client.subscribe(inbox) for inbox in inboxes]
    bodies = (b"1", b"1", json.dumps({"batch": 1, "expires": SECOND, "idle_heartbeat": 500 * MS}).encode())
    for inbox, body in zip(inboxes, bodies, strict=True):
        await talk.client.publish(talk.pull_subject("c"), body, reply=inbox)
    assert status(await waiting[1].next_msg(timeout=5)) == "409 Exceeded MaxWaiting"
    await quiet(waiting[0])
    await quiet(waiting[2])
    assert (await talk.info("c"))["num_waiting"] == 1


@pytest.mark.feature("consumer.max-request")
async def test_a_pull_asks_for_no_more_than_the_consumer_allows(talk: ConsumerTalk) -> None:
    await talk.consumer("c", max_batch=2, max_expires=SECOND, max_bytes=100)
    for body, expected in (
        ({"batch": 3}, "409 Exceeded MaxRequestBatch of 2"),
        ({"batch": 1, "expires": 2 * SECOND}, "409 Exceeded MaxRequestExpires of 1s"),
        ({"batch": 1, "max_bytes": 101}, "409 Exceeded MaxRequestMaxBytes of 100"),
    ):
        [end] = await talk.pull("c", body)
        assert status(end) == expected


@pytest.mark.feature("consumer.sampling")
async def test_acks_are_sampled(talk: ConsumerTalk) -> None:
    assert code(await talk.consumer("x", sample_freq="often")) == 10095
    await talk.fill(1)
    await talk.consumer("c", sample_freq="100%")
    reported = await talk.advisories("METRIC.CONSUMER.ACK")
    [message] = await talk.pull("c")
    await talk.client.publish(message.reply)
    metric = json.loads((await reported.next_msg(timeout=5)).data)
    assert metric["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert (metric["stream_seq"], metric["consumer_seq"], metric["deliveries"]) == (1, 1, 1)
    assert metric["ack_time"] > 0


@pytest.mark.feature("consumer.replicas-memory")
async def test_a_consumer_may_live_in_memory_and_not_on_more_servers_than_its_stream(
    talk: ConsumerTalk,
) -> None:
    """Error 10126."""
    made = await talk.consumer("c", mem_storage=True, num_replicas=1)
    assert (made["config"]["mem_storage"], made["config"]["num_replicas"]) == (True, 1)
    assert code(await talk.consumer("x", num_replicas=3)) in (10126, 10074)


@pytest.mark.feature("consumer.api")
async def test_consumers_are_listed_and_told_about_and_deleted(talk: ConsumerTalk) -> None:
    """Error 10014."""
    await talk.fill(3)
    for name in ("b", "a"):
        await talk.consumer(name)
    names = await talk.api(f"CONSUMER.NAMES.{talk.name}")
    assert (names["consumers"], names["total"]) == (["a", "b"], 2)
    listed = await talk.api(f"CONSUMER.LIST.{talk.name}", {"offset": 1})
    assert [info["name"] for info in listed["consumers"]] == ["b"]
    await talk.pull("a", b"2")
    info = await talk.info("a")
    counts = ("num_ack_pending", "num_pending", "num_waiting", "num_redelivered")
    assert [info[field] for field in counts] == [2, 1, 0, 0]
    assert (info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]) == (2, 0)
    assert (await talk.api(f"CONSUMER.DELETE.{talk.name}.a"))["success"]
    assert code(await talk.info("a")) == code(await talk.api(f"CONSUMER.DELETE.{talk.name}.a")) == 10014


@pytest.mark.feature("consumer.shared-pull")
async def test_clients_of_one_durable_share_its_messages(url: str, talk: ConsumerTalk) -> None:
    await talk.fill(40)
    await talk.consumer("c", durable_name="c")
    client = await nats.connect(url, allow_reconnect=False)
    other = ConsumerTalk(client)
    other.name = talk.name
    halves = await asyncio.gather(talk.pull("c", b"20"), other.pull("c", b"20"))
    one, two = (sequences(half) for half in halves)
    assert sorted(one + two) == list(range(1, 41))
    await client.close()


@pytest.mark.feature("consumer.ordered")
async def test_an_ordered_consumer_goes_on_after_a_gap(url: str, talk: ConsumerTalk) -> None:
    """A client that loses its consumer makes another, which starts at the next message."""
    await talk.fill(20)
    js = talk.client.jetstream()
    subscription = await js.subscribe(f"{talk.name}.>", ordered_consumer=True, idle_heartbeat=0.2)
    got = [int((await subscription.next_msg(timeout=5)).data) for _ in range(20)]
    first = (await talk.api(f"CONSUMER.NAMES.{talk.name}"))["consumers"]
    info = await talk.info(first[0])
    assert (info["config"]["ack_policy"], info["config"]["max_deliver"]) == ("none", 1)
    await talk.api(f"CONSUMER.DELETE.{talk.name}.{first[0]}")
    await talk.fill(3)
    got += [int((await subscription.next_msg(timeout=10)).data) for _ in range(3)]
    assert got == [*range(1, 21), 1, 2, 3]
    assert (await talk.api(f"CONSUMER.NAMES.{talk.name}"))["consumers"] != first


@pytest.mark.feature("consumer.priority-groups")
async def test_priority_groups_decide_who_is_served(talk: ConsumerTalk) -> None:
    """Errors 10159, 10160, 10161, 10162, 10196 and 10178; status 423."""
    groups = {"priority_groups": ["g"]}
    for config, expected in (
        ({"priority_policy": "overflow"}, 10159),
        ({"priority_policy": "overflow", "priority_groups": [""]}, 10161),
        ({"priority_policy": "overflow", "priority_groups": ["no.dots"]}, 10162),
        (groups, 10196),
        ({**groups, "priority_policy": "overflow", "deliver_subject": "d"}, 10178),
    ):
        assert code(await talk.consumer("x", **config)) == expected
    await talk.fill(6)
    wait = {"batch": 1, "expires": 200 * MS, "group": "g"}
    await talk.consumer("over", **groups, priority_policy="overflow")
    assert sequences(await talk.pull("over", {**wait, "min_pending": 6})) == [1]
    [end] = await talk.pull("over", {**wait, "min_pending": 6})
    assert status(end) == "408 Request Timeout"
    [end] = await talk.pull("over", {"batch": 1, "expires": 200 * MS})
    assert status(end) == "400 Bad Request - Priority Group missing"

    await talk.consumer("pin", **groups, priority_policy="pinned_client", priority_timeout=60 * SECOND)
    [first] = await talk.pull("pin", wait)
    pin = headers_of(first)["Nats-Pin-Id"]
    [end] = await talk.pull("pin", wait)
    assert status(end) == "408 Request Timeout"
    assert sequences(await talk.pull("pin", {**wait, "id": pin})) == [2]
    [end] = await talk.pull("pin", {**wait, "id": "x" * 22})
    assert status(end).startswith("423")
    assert code(await talk.api(f"CONSUMER.UNPIN.{talk.name}.pin", {"group": "other"})) == 10160
    assert code(await talk.api(f"CONSUMER.UNPIN.{talk.name}.pin", {"group": "g"})) == 0
    [third] = await talk.pull("pin", wait)
    assert headers_of(third)["Nats-Pin-Id"] != pin

    await talk.consumer("prio", **groups, priority_policy="prioritized", filter_subject=f"{talk.name}.p")
    inboxes = [talk.client.new_inbox() for _ in range(2)]
    waiting = [await talk.client.subscribe(inbox) for inbox in inboxes]
    for inbox, priority in zip(inboxes, (5, 1), strict=True):
        body = json.dumps({**wait, "expires": 5 * SECOND, "priority": priority}).encode()
        await talk.client.publish(talk.pull_subject("prio"), body, reply=inbox)
    await talk.until_info("prio", num_waiting=2)
    await talk.fill(1, "p")
    assert (await waiting[1].next_msg(timeout=5)).data == b"1"
    await quiet(waiting[0])


@pytest.mark.feature("consumer.pause", "consumer.reset")
async def test_a_consumer_is_paused_and_set_back(talk: ConsumerTalk) -> None:
    """Error 10204 for a reset that is refused."""
    await talk.fill(4)
    await talk.consumer("c")
    reported = await talk.advisories("ADVISORY.CONSUMER.PAUSE")
    paused = await talk.api(f"CONSUMER.PAUSE.{talk.name}.c", {"pause_until": "2090-01-01T00:00:00Z"})
    assert paused["paused"] and paused["pause_remaining"] > 0
    assert json.loads((await reported.next_msg(timeout=5)).data)["paused"]
    [end] = await talk.pull("c", {"batch": 1, "expires": 200 * MS})
    assert status(end) == "408 Request Timeout"
    assert not (await talk.api(f"CONSUMER.PAUSE.{talk.name}.c"))["paused"]
    assert not json.loads((await reported.next_msg(timeout=5)).data).get("paused", False)
    for message in await talk.pull("c", b"3"):
        await talk.client.request(message.reply, b"", timeout=5)
    reset = await talk.api(f"CONSUMER.RESET.{talk.name}.c", {"seq": 2})
    assert reset["reset_seq"] == 2
    assert sequences(await talk.pull("c", b"3")) == [2, 3, 4]
    await talk.consumer("new", deliver_policy="new")
    assert code(await talk.api(f"CONSUMER.RESET.{talk.name}.new", {"seq": 2})) == 10204
