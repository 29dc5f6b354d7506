"""Acks and redelivery: one test for each feature, on both servers."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.protocol.ids import short_hash
from tests.support.consumer_talk import (
    MS,
    NOW,
    SECOND,
    ConsumerTalk,
    deliveries,
    quiet,
    sequence,
    sequences,
    status,
)
from tests.support.talk import code


@pytest.mark.feature("consumer.ack-policy")
async def test_acks_may_be_for_one_for_all_before_or_not_wanted(talk: ConsumerTalk) -> None:
    await talk.fill(100)
    await talk.consumer("all", ack_policy="all")
    await talk.consumer("one")
    await talk.consumer("none", ack_policy="none")
    for name, floor, pending in (("all", 99, 1), ("one", 0, 99)):
        messages = await talk.pull(name, b"100")
        await talk.client.publish(messages[98].reply)
        await talk.until_info(name, num_ack_pending=pending)
        assert (await talk.info(name))["ack_floor"]["stream_seq"] == floor
    await talk.pull("none", b"7")
    info = await talk.info("none")
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (7, 0)


@pytest.mark.feature("consumer.ack")
async def test_an_ack_is_empty_or_says_so_to_a_subject_of_either_version(talk: ConsumerTalk) -> None:
    await talk.fill(5)
    await talk.consumer("c")
    messages = await talk.pull("c", b"5")
    assert all(len(message.reply.split(".")) == 9 for message in messages)
    await talk.client.publish(messages[0].reply, b"")
    await talk.client.publish(messages[1].reply, b"+ACK")
    await talk.client.publish(messages[2].reply, b"+OK")
    await talk.until_info("c", num_ack_pending=2)
    long = [message.reply.replace("$JS.ACK.", f"$JS.ACK._.{short_hash('$G')}.") for message in messages[3:]]
    await talk.client.publish(long[0], b"+ACK")
    await talk.client.publish(f"{long[1]}.extra", b"")
    await talk.until_info("c", num_ack_pending=0)


@pytest.mark.feature("consumer.nak")
async def test_a_message_given_back_comes_again_at_once_or_later(talk: ConsumerTalk) -> None:
    """Also the advisory."""
    await talk.fill(3)
    await talk.consumer("c")
    reported = await talk.advisories("ADVISORY.CONSUMER.MSG_NAKED")
    messages = await talk.pull("c", b"3")
    loop = asyncio.get_running_loop()
    await talk.client.publish(messages[0].reply, b"-NAK")
    [again] = await talk.pull("c")
    assert (sequence(again), deliveries(again)) == (1, 2)
    advisory = json.loads((await reported.next_msg(timeout=5)).data)
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.nak"
    assert (advisory["consumer_seq"], advisory["stream_seq"], advisory["deliveries"]) == (1, 1, 1)
    for message, body in ((messages[1], b'-NAK {"delay":200000000}'), (messages[2], b"-NAK 200ms")):
        started = loop.time()
        await talk.client.publish(message.reply, body)
        [again] = await talk.pull("c", {"batch": 1, "expires": 5 * SECOND})
        assert sequence(again) == sequence(message)
        assert loop.time() - started >= 0.19


@pytest.mark.feature("consumer.in-progress")
async def test_work_in_progress_puts_the_redelivery_off(talk: ConsumerTalk) -> None:
    await talk.fill(1)
    await talk.consumer("c", ack_wait=300 * MS)
    [message] = await talk.pull("c")
    for _ in range(3):
        await asyncio.sleep(0.15)
        await talk.client.publish(message.reply, b"+WPI")
    assert sequences(await talk.pull("c", NOW)) == []
    assert (await talk.info("c"))["num_redelivered"] == 0
    [again] = await talk.pull("c", {"batch": 1, "expires": 5 * SECOND})
    assert deliveries(again) == 2


@pytest.mark.feature("consumer.ack-next")
async def test_an_ack_may_ask_for_what_is_next(talk: ConsumerTalk) -> None:
    await talk.fill(7)
    await talk.consumer("c")
    [message] = await talk.pull("c")
    inbox = talk.client.new_inbox()
    answers = await talk.client.subscribe(inbox)
    for body, expected in ((b"+NXT", [2]), (b"+NXT 3", [3, 4, 5]), (b'+NXT {"batch":2}', [6, 7])):
        await talk.client.publish(message.reply, body, reply=inbox)
        messages = [await answers.next_msg(timeout=5) for _ in expected]
        assert sequences(messages) == expected
        message = messages[-1]
    await talk.client.publish(message.reply, b'+NXT {"no_wait":true}', reply=inbox)
    assert status(await answers.next_msg(timeout=5)) == "404 No Messages"
    await talk.until_info("c", num_ack_pending=3)  # 3, 4 and 6 were never acked


@pytest.mark.feature("consumer.term")
async def test_a_terminated_message_never_comes_again(talk: ConsumerTalk) -> None:
    await talk.fill(1)
    await talk.consumer("c", ack_wait=100 * MS)
    reported = await talk.advisories("ADVISORY.CONSUMER.MSG_TERMINATED")
    [message] = await talk.pull("c")
    await talk.client.publish(message.reply, b"+TERM it is poison")
    advisory = json.loads((await reported.next_msg(timeout=5)).data)
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.terminated"
    assert (advisory["stream_seq"], advisory["reason"]) == (1, "it is poison")
    [end] = await talk.pull("c", {"batch": 1, "expires": 250 * MS})
    assert status(end) == "408 Request Timeout"


@pytest.mark.feature("consumer.ack-sync", "consumer.exactly-once")
async def test_an_ack_with_a_reply_is_confirmed(talk: ConsumerTalk) -> None:
    """What was published twice is stored once, and what is confirmed never comes again."""
    for _ in range(2):
        await talk.pub("a", Nats_Msg_Id="one")
    assert (await talk.state())["messages"] == 1
    await talk.consumer("c", ack_wait=100 * MS)
    [message] = await talk.pull("c")
    confirmation = await talk.client.request(message.reply, b"+ACK", timeout=5)
    assert (confirmation.data, confirmation.headers) == (b"", None)
    info = await talk.info("c")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 1)
    [end] = await talk.pull("c", {"batch": 1, "expires": 250 * MS})
    assert status(end) == "408 Request Timeout"


@pytest.mark.feature("consumer.ack-wait")
async def test_what_is_not_acked_in_time_comes_again(talk: ConsumerTalk) -> None:
    assert (await talk.consumer("default"))["config"]["ack_wait"] == 30 * SECOND
    await talk.fill(1)
    await talk.consumer("c", ack_wait=100 * MS)
    await talk.pull("c")
    [again] = await talk.pull("c", {"batch": 1, "expires": 5 * SECOND})
    assert (sequence(again), deliveries(again), int(again.reply.split(".")[6])) == (1, 2, 2)
    info = await talk.info("c")
    assert (info["num_redelivered"], info["delivered"]) == (1, {**info["delivered"], "consumer_seq": 2})


@pytest.mark.feature("consumer.backoff")
async def test_redeliveries_wait_as_the_backoff_says(talk: ConsumerTalk) -> None:
    """Error 10116."""
    assert code(await talk.consumer("x", backoff=[MS, MS], max_deliver=1)) == 10116
    made = await talk.consumer("c", backoff=[100 * MS, 400 * MS], max_deliver=3, ack_wait=9 * SECOND)
    assert made["config"]["ack_wait"] == 100 * MS
    await talk.fill(1)
    times = []
    for _ in range(3):
        await talk.pull("c", {"batch": 1, "expires": 5 * SECOND})
        times.append(asyncio.get_running_loop().time())
    assert 0.08 < times[1] - times[0] < 0.35
    assert 0.38 < times[2] - times[1] < 1.0


@pytest.mark.feature("consumer.max-deliver")
async def test_a_message_is_given_up_after_max_deliver(talk: ConsumerTalk) -> None:
    await talk.fill(1)
    await talk.consumer("c", max_deliver=2, ack_wait=100 * MS)
    reported = await talk.advisories("ADVISORY.CONSUMER.MAX_DELIVERIES")
    for _ in range(2):
        assert sequences(await talk.pull("c", {"batch": 1, "expires": 5 * SECOND})) == [1]
    [end] = await talk.pull("c", {"batch": 1, "expires": 300 * MS})
    assert status(end) == "408 Request Timeout"
    advisory = json.loads((await reported.next_msg(timeout=5)).data)
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.max_deliver"
    assert (advisory["stream_seq"], advisory["deliveries"]) == (1, 2)
    await quiet(reported)
    assert (await talk.state())["messages"] == 1


@pytest.mark.feature("consumer.max-ack-pending")
async def test_delivery_stops_at_max_ack_pending(talk: ConsumerTalk) -> None:
    assert (await talk.consumer("default"))["config"]["max_ack_pending"] == 1000
    await talk.fill(5)
    await talk.consumer("c", max_ack_pending=2)
    *messages, end = await talk.pull("c", {"batch": 5, "expires": 200 * MS})
    assert (sequences(messages), status(end)) == ([1, 2], "408 Request Timeout")
    assert (await talk.info("c"))["num_pending"] == 3
    await talk.client.request(messages[1].reply, b"", timeout=5)
    *messages, _ = await talk.pull("c", {"batch": 5, "expires": 200 * MS})
    assert sequences(messages) == [3]
