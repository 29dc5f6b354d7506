"""The JetStream API of a cluster, on penstock and on the official server: one answer to each request, the
same from every server, with the same texts."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from typing import Any

import pytest
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from tests.support.meta_answers import SYSTEM, TABLE
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

pytestmark = pytest.mark.feature("cluster.administration")


async def test_all_servers_name_one_meta_leader(talk: ClusterTalk) -> None:
    for attempt in range(100):  # the last server joins after the two that begin the cluster
        pages = [await talk.do_page(index, "jsz") for index in range(3)]
        metas = [page["meta_cluster"] for page in pages]
        if {(meta["leader"], meta["cluster_size"]) for meta in metas} == {(metas[0]["leader"], 3)}:
            break
        await asyncio.sleep(0.1 if attempt else 0)
    assert len({meta["leader"] for meta in metas}) == 1
    assert {meta["cluster_size"] for meta in metas} == {3}
    assert {meta["name"] for meta in metas} == {"c"}


async def test_each_request_has_one_answer(talk: ClusterTalk) -> None:
    await talk.create("ONE")
    body = {"durable_name": "d", "ack_policy": "explicit"}
    await talk.ask("CONSUMER.DURABLE.CREATE.ONE.d", {"stream_name": "ONE", "config": body})
    client = await talk.client(0)
    await client.request("ONE.a", b"x")
    requests: dict[str, Any] = {
        "INFO": None, "STREAM.INFO.ONE": None, "STREAM.INFO.NONE": None, "STREAM.NAMES": None,
        "STREAM.LIST": None, "STREAM.MSG.GET.ONE": {"seq": 1}, "STREAM.MSG.GET.NONE": {"seq": 1},
        "STREAM.PURGE.NONE": None, "STREAM.UPDATE.NONE": {"name": "NONE"}, "STREAM.DELETE.NONE": None,
        "CONSUMER.INFO.ONE.d": None, "CONSUMER.INFO.ONE.z": None, "CONSUMER.NAMES.ONE": None,
        "CONSUMER.LIST.ONE": None, "CONSUMER.DELETE.ONE.z": None, "CONSUMER.INFO.NONE.z": None,
        "STREAM.CREATE.FIVE": {"name": "FIVE", "subjects": ["f"], "num_replicas": 5},
        "STREAM.PURGE.ONE": None, "STREAM.LEADER.STEPDOWN.NONE": None,
    }  # fmt: skip
    wrong = {}
    for server in range(3):
        asking = await talk.client(server)
        got: Counter[str] = Counter()

        async def count(message: Any, got: Counter[str] = got) -> None:
            got[message.subject.removeprefix("answers.")] += 1

        await asking.subscribe("answers.>", cb=count)
        await asking.flush()
        for subject, asked in requests.items():
            data = b"" if asked is None else json.dumps(asked).encode()
            await asking.publish(f"$JS.API.{subject}", data, reply=f"answers.{subject}")
        await until(lambda got=got: len(got) == len(requests), 10)  # type: ignore[misc]
        await asyncio.sleep(0.3)  # a second answer would follow
        wrong |= {f"{server}: {subject}": got[subject] for subject in requests if got[subject] != 1}
    assert wrong == {}


@pytest.mark.feature("stream.replicas")
async def test_a_stream_with_three_replicas_shows_them(talk: ClusterTalk) -> None:
    await talk.create("SHOWN")
    for server in range(3):
        group = (await talk.info("SHOWN", server=server))["cluster"]
        assert group["name"] == "c"
        assert {group["leader"], *(one["name"] for one in group["replicas"])} == {"a", "b", "c"}
        assert re.fullmatch(r"S-R3F-\w{8}", group["raft_group"])
        assert group["leader_since"]
        assert [one["name"] for one in group["replicas"]] == sorted(one["name"] for one in group["replicas"])
        for one in group["replicas"]:
            assert one["current"]
            assert re.fullmatch(r"\w{8}", one["peer"])
            assert one["active"] >= 0
    created = await talk.create("SINGLE", 1)
    assert created["did_create"]
    single = (await talk.info("SINGLE"))["cluster"]
    assert not single.get("replicas")
    assert single["leader"] in "abc"


async def test_a_stream_with_a_mirror_names_both_as_alternates(talk: ClusterTalk) -> None:
    assert not (await talk.create("READ", 1)).get("alternates")
    assert not (await talk.info("READ")).get("alternates")
    await talk.create("COPY", 1, subjects=[], mirror={"name": "READ"})
    for server in range(3):
        alternates = (await talk.info("READ", server=server))["alternates"]
        assert sorted((one["name"], one["cluster"]) for one in alternates) == [("COPY", "c"), ("READ", "c")]
        assert not (await talk.info("COPY", server=server)).get("alternates")


async def test_requests_are_answered_as_by_the_official_server(talk: ClusterTalk) -> None:
    wrong = []
    for asked in TABLE:
        body, text = asked.body, asked.text
        if body is not None and body.get("placement", {}).get("preferred") == "LEADER":
            leader = (await talk.info("S"))["cluster"]["leader"]
            body, text = {"placement": {"preferred": leader}}, text.replace("LEADER", leader)
        try:
            answer = await talk.ask(asked.subject.replace("$G", "APP"), body, timeout_s=5)
            error = answer.get("error", {})
            found = (error.get("err_code", 0), error.get("description", ""))
        except (NatsTimeout, NoRespondersError) as error:
            found = (-1, f"no answer: {type(error).__name__}")
        if found != (asked.code, text):
            wrong.append(f"{asked.subject} {body}: {found}, expected {(asked.code, text)}")
        await asyncio.sleep(0.05 if asked.code else 0.5)
    assert wrong == []


async def test_users_get_no_answer_to_requests_of_the_system_account(talk: ClusterTalk) -> None:
    client = await talk.client(0)
    for subject in ("META.LEADER.STEPDOWN", "SERVER.REMOVE"):
        assert subject.startswith(SYSTEM)
        with pytest.raises((NatsTimeout, NoRespondersError)):
            await client.request(f"$JS.API.{subject}", b'{"peer": "zz"}', timeout=0.3)


async def test_a_step_down_moves_the_leader_to_the_preferred_server(talk: ClusterTalk) -> None:
    await talk.create("MOVED")
    leader = await talk.leader("MOVED")
    wanted = (leader + 1) % 3
    answer = await talk.ask("STREAM.LEADER.STEPDOWN.MOVED", {"placement": {"preferred": "abc"[wanted]}})
    assert answer.get("success"), answer
    assert await talk.leader("MOVED", but=leader) == wanted
    await talk.whole("MOVED")
    client = await talk.client(leader)
    answer = json.loads((await client.request("MOVED.a", b"x", timeout=5)).data)
    assert answer["seq"] == 1
    one = await talk.create("LONE", 1)
    assert (await talk.ask("STREAM.LEADER.STEPDOWN.LONE")).get("success"), one


async def test_the_meta_leader_steps_down(talk: ClusterTalk) -> None:
    first = await talk.do_meta_leader()
    answer = await talk.ask("META.LEADER.STEPDOWN", {"placement": {"preferred": "abc"[(first + 1) % 3]}})
    assert answer.get("success"), answer

    async def is_other() -> bool:
        return await asyncio.to_thread(talk.made.meta_leader) == (first + 1) % 3

    await until(is_other, 20)
    await talk.create("AFTER")


async def test_ephemeral_consumers_have_one_replica_and_durable_ones_those_of_the_stream(
    talk: ClusterTalk,
) -> None:
    await talk.create("KEPT")
    body = {"stream_name": "KEPT", "config": {"ack_policy": "explicit", "inactive_threshold": 60_000_000_000}}
    ephemeral = await talk.ask("CONSUMER.CREATE.KEPT", body)
    assert not ephemeral["cluster"].get("replicas"), ephemeral
    body = {"stream_name": "KEPT", "config": {"durable_name": "d", "ack_policy": "explicit"}}
    durable = await talk.ask("CONSUMER.DURABLE.CREATE.KEPT.d", body)
    assert len(durable["cluster"]["replicas"]) == 2, durable


async def test_consumers_that_expired_are_listed_no_more(talk: ClusterTalk) -> None:
    await talk.create("SHORT")
    config = {"ack_policy": "explicit", "inactive_threshold": 500_000_000}
    for name in ("a", "b", "stays"):
        fields = config | ({"inactive_threshold": 0, "durable_name": name} if name == "stays" else {})
        body = {"stream_name": "SHORT", "config": fields | {"name": name}}
        await talk.ask(f"CONSUMER.CREATE.SHORT.{name}", body)
    assert (await talk.ask("CONSUMER.NAMES.SHORT"))["consumers"] == ["a", "b", "stays"]
    names: list[str] = []
    async with asyncio.timeout(20):
        while names != ["stays"]:
            names = (await talk.ask("CONSUMER.NAMES.SHORT"))["consumers"]
            await asyncio.sleep(0.1)
    for server in range(3):
        assert (await talk.info("SHORT", server=server))["state"]["consumer_count"] == 1


@pytest.mark.parametrize("replicas", [1, 3])
async def test_what_happens_to_a_stream_is_announced_once(talk: ClusterTalk, replicas: int) -> None:
    client = await talk.client()
    heard = await client.subscribe("$JS.EVENT.ADVISORY.STREAM.*.NEWS")
    await client.flush()
    await talk.create("NEWS", replicas)
    config = (await talk.info("NEWS"))["config"]
    assert "error" not in await talk.ask("STREAM.UPDATE.NEWS", {**config, "max_msgs": 5})
    assert (await talk.ask("STREAM.DELETE.NEWS")).get("success")
    actions: list[str] = []
    while "delete" not in actions:
        event = json.loads((await heard.next_msg(timeout=10)).data)
        actions += [event["action"]] if event["type"].endswith("stream_action") else []
    assert actions == ["create", "modify", "delete"]


async def test_a_consumer_that_delivers_at_once_is_shown_as_it_began(talk: ClusterTalk) -> None:
    """Clients count on it: they take num_pending for the number of messages that will come."""
    await talk.create("BEGUN")
    client = await talk.client()
    for _ in range(5):
        await client.request("BEGUN.a", b"")
    for number in range(20):
        inbox = client.new_inbox()
        messages = await client.subscribe(inbox)
        config = {"name": f"c{number}", "deliver_subject": inbox, "ack_policy": "none"}
        body = {"stream_name": "BEGUN", "config": config}
        answer = await talk.ask(f"CONSUMER.CREATE.BEGUN.c{number}", body, server=number % 3)
        assert (answer["delivered"]["consumer_seq"], answer["num_pending"]) == (0, 5), answer
        for _ in range(5):
            await messages.next_msg(timeout=5)
        await messages.unsubscribe()


async def test_a_stream_info_does_not_count_a_consumer_that_was_deleted_before(
    talk: ClusterTalk, kind: str
) -> None:
    """Also where the meta group has another leader than the stream, which hears of the deletion later. The
    official server counts such a consumer now and then."""
    await talk.create("COUNTED")
    await talk.lead("COUNTED", talk.made.servers[(await talk.do_meta_leader() + 1) % 3].name)
    for number in range(30):
        body = {"stream_name": "COUNTED", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        for request, asked, wanted in (("DURABLE.CREATE", body, 1), ("DELETE", None, 0)):
            answer = await talk.ask(f"CONSUMER.{request}.COUNTED.c", asked, server=number % 3)
            assert "error" not in answer, answer
            info = await talk.info("COUNTED", server=number // 3 % 3)
            assert kind == "official" or info["state"]["consumer_count"] == wanted


async def test_direct_gets_are_answered_by_every_replica(talk: ClusterTalk) -> None:
    await talk.create("DIRECT", allow_direct=True)
    client = await talk.client(0)
    for number in range(20):
        await client.request(f"DIRECT.{number}", b"%d" % number)
    await talk.whole("DIRECT")
    for server in range(3):
        reading = await talk.client(server)
        for number in range(20):
            data = b'{"last_by_subj": "DIRECT.%d"}' % number
            message = await reading.request("$JS.API.DIRECT.GET.DIRECT", data, timeout=5)
            assert message.data == b"%d" % number
            assert message.headers["Nats-Sequence"] == str(number + 1)


async def test_two_creates_with_the_same_subject_never_both_win(talk: ClusterTalk) -> None:
    clients = [await talk.client(server) for server in range(3)]

    async def create(number: int) -> dict[str, Any]:
        body = {"name": f"RACE{number}", "subjects": ["race.>"], "num_replicas": 3}
        message = await clients[number].request(
            f"$JS.API.STREAM.CREATE.RACE{number}", json.dumps(body).encode(), timeout=10
        )
        found: dict[str, Any] = json.loads(message.data)
        return found

    answers = await asyncio.gather(*(create(number) for number in range(3)))
    try:
        codes = sorted(answer.get("error", {}).get("err_code", 0) for answer in answers)
        assert codes == [0, 10065, 10065], answers
    finally:
        for number in range(3):
            await talk.ask(f"STREAM.DELETE.RACE{number}")


@pytest.mark.feature("core.message-tracing")
async def test_a_trace_tells_which_stream_on_another_server_takes_a_message(talk: ClusterTalk) -> None:
    await talk.create("TRACED")
    leader = await talk.leader("TRACED")
    client = await talk.client((leader + 1) % 3)
    pages: list[dict[str, Any]] = []

    async def note(message: Any) -> None:
        pages.append(json.loads(message.data))

    await client.subscribe("told", cb=note)
    await client.flush()
    await client.request("TRACED.a", b"1")
    for number, only in ((1, {"Nats-Trace-Only": "true"}), (2, {})):
        pages.clear()
        await client.publish("TRACED.a", b"x", headers={"Nats-Trace-Dest": "told", **only})
        stored: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while not stored:
                await asyncio.sleep(0.01)
                stored = [event for page in pages for event in page["events"] if event["type"] == "js"]
        assert [(one["stream"], one["subject"]) for one in stored] == [("TRACED", "TRACED.a")]
        await client.request("TRACED.b", b"y")
        assert (await talk.info("TRACED"))["state"]["messages"] == number + (number == 2) + 1
    got = await talk.ask("STREAM.MSG.GET.TRACED", {"seq": 3})
    header = base64.b64decode(got["message"]["hdrs"])
    assert b"Nats-Trace-Dest: trace disabled\r\n" in header
