"""JetStream of another account, and the limits of accounts, on both servers."""

from __future__ import annotations

from collections.abc import Iterator

import nats
import pytest
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import ConsumerConfig

import penstock
from tests.support.conf_servers import login
from tests.support.transfers import stored

pytestmark = pytest.mark.feature("security.accounts", "security.account-limits")

CONF = """
accounts {
  E {
    users: [ {user: e, password: e} ]
    jetstream: enabled
    exports: [
      { service: "$JS.API.>", response_type: stream }
      { service: "$JS.ACK.>" }
      { service: "$JS.FC.>" }
      { service: "orders.>" }
      { stream: "deliver.>" }
      { stream: "events.>" }
    ]
  }
  I {
    users: [ {user: i, password: i} ]
    jetstream: { max_mem: 0, max_file: 200000 }
    imports: [
      { service: {account: E, subject: "$JS.API.>"}, to: "JS.E.API.>" }
      { service: {account: E, subject: "$JS.ACK.>"} }
      { service: {account: E, subject: "$JS.FC.>"} }
      { service: {account: E, subject: "orders.>"} }
      { stream: {account: E, subject: "deliver.>"} }
      { stream: {account: E, subject: "events.>"}, to: "their.>" }
    ]
  }
  N {
    users: [ {user: n, password: n} ]
    imports: [ { service: {account: E, subject: "$JS.API.>"} } ]
  }
  P { users: [ {user: p, password: p} ] }
  L {
    users: [ {user: l, password: l} ]
    jetstream: { max_mem: 5000, max_file: 3000, max_bytes_required: true,
                 memory_max_stream_bytes: 2000, disk_max_stream_bytes: 2500 }
  }
}
"""


@pytest.fixture
def stream(port: int) -> Iterator[str]:
    """A stream of account E with five messages."""
    e = login(port, "e")
    config = {"name": "ORDERS", "subjects": ["orders.>"], "storage": "file", "max_bytes": 10000}
    assert "error" not in e.request("$JS.API.STREAM.CREATE.ORDERS", config)
    for n in range(5):
        e.request("orders.a", {"n": n})
    yield "ORDERS"
    e.request("$JS.API.STREAM.DELETE.ORDERS")
    e.close()


async def test_the_official_client_uses_another_accounts_jetstream(port: int, stream: str) -> None:
    nc = await nats.connect(f"nats://127.0.0.1:{port}", user="i", password="i")
    js = nc.jetstream(prefix="JS.E.API")
    assert (await js.publish("orders.b", b"six")).seq == 6
    assert (await js.stream_info(stream)).state.messages == 6
    pull = await js.pull_subscribe("orders.>", durable="pull", stream=stream)
    messages = await pull.fetch(4, timeout=5)
    assert [m.subject for m in messages] == ["orders.a"] * 4
    for message in messages:
        await message.ack_sync()
    (fifth, sixth) = await pull.fetch(2, timeout=5)
    assert (fifth.metadata.sequence.stream, sixth.subject) == (5, "orders.b")
    assert (await js.consumer_info(stream, "pull")).ack_floor.stream_seq == 4
    with pytest.raises(nats.errors.TimeoutError):
        await pull.fetch(1, timeout=0.3)
    await nc.close()


async def next_stored(sub: Subscription) -> Msg:
    """The next message of the stream; answers flow control, and passes over heartbeats."""
    while True:
        message = await sub.next_msg(5)
        if not message.headers or message.headers.get("Status") != "100":
            return message
        if message.reply:
            await message.respond(b"")


async def test_push_with_flow_control_crosses_accounts(port: int, stream: str) -> None:
    nc = await nats.connect(f"nats://127.0.0.1:{port}", user="i", password="i")
    js = nc.jetstream(prefix="JS.E.API")
    config = ConsumerConfig(
        durable_name="push", deliver_subject="deliver.here", flow_control=True, idle_heartbeat=1.0
    )
    await js.add_consumer(stream, config)
    sub = await nc.subscribe("deliver.here")
    for n in range(1, 6):
        message = await next_stored(sub)
        assert message.subject == "orders.a"
        assert message.metadata.sequence.stream == n
        await message.ack()
    await nc.flush()
    assert (await js.consumer_info(stream, "push")).num_ack_pending == 0
    await nc.close()


async def test_our_client_uses_another_accounts_jetstream(port: int, stream: str) -> None:
    client = await penstock.connect(f"nats://127.0.0.1:{port}", user="i", password="i")
    js = client.jetstream(prefix="JS.E.API")
    await js.publish("orders.b", b"six")
    consumer = await (await js.stream(stream)).create_consumer(name="ours")
    got = [message async for message in consumer.fetch(6)]
    assert [message.subject for message in got] == ["orders.a"] * 5 + ["orders.b"]
    await client.close()


def test_a_stream_takes_what_its_account_imports(port: int) -> None:
    e, i = login(port, "e"), login(port, "i")
    config = {"name": "THEIR", "subjects": ["their.>"], "storage": "file", "max_bytes": 10000}
    assert "error" not in i.request("$JS.API.STREAM.CREATE.THEIR", config)
    e.publish("events.a.b", b"1")
    stored(i, "THEIR", 1)
    answer = i.request("$JS.API.STREAM.MSG.GET.THEIR", {"seq": 1})
    assert answer["message"]["subject"] == "their.a.b"
    i.request("$JS.API.STREAM.DELETE.THEIR")
    e.close()
    i.close()


def test_an_account_that_imports_the_api_has_one_answer(port: int) -> None:
    n = login(port, "n")
    n.subscribe("in", 1)
    n.publish("$JS.API.INFO", b"", "in")
    assert b"account_info_response" in n.message().payload
    n.flush()
    n.publish("nothing", b"", "in")
    assert n.message().header.startswith(b"NATS/1.0 503")
    n.close()


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ("INFO", "account_info_response"),
        ("STREAM.LIST", "stream_list_response"),
        ("STREAM.NAMES", "stream_names_response"),
        ("STREAM.INFO.S", "stream_info_response"),
        ("STREAM.DELETE.S", "stream_delete_response"),
        ("CONSUMER.LIST.S", "consumer_list_response"),
        ("CONSUMER.INFO.S.C", "consumer_info_response"),
    ],
)
def test_an_account_without_jetstream_gets_an_error(port: int, request_: str, kind: str) -> None:
    p = login(port, "p")
    answer = p.request(f"$JS.API.{request_}")
    assert answer["type"] == f"io.nats.jetstream.api.v1.{kind}"
    assert answer["error"]["err_code"] == 10039
    p.close()


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"storage": "memory"}, 10113),
        ({"storage": "file"}, 10113),
        ({"storage": "memory", "max_bytes": 2001}, 10122),
        ({"storage": "file", "max_bytes": 2501}, 10122),
    ],
)
def test_a_stream_is_held_to_what_the_account_wants(port: int, config: dict[str, object], code: int) -> None:
    client = login(port, "l")
    answer = client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], **config})
    assert answer["error"]["err_code"] == code
    client.close()


def test_what_streams_reserve_counts_for_the_account(port: int) -> None:
    client = login(port, "l")

    def create(name: str, storage: str, size: int) -> int:
        config = {"name": name, "subjects": [name], "storage": storage, "max_bytes": size}
        answer = client.request(f"$JS.API.STREAM.CREATE.{name}", config)
        return int(answer.get("error", {}).get("err_code", 0))

    assert create("F1", "file", 2000) == 0
    assert create("F2", "file", 2000) == 10047, "3000 bytes of files in this account"
    assert create("M1", "memory", 2000) == create("M2", "memory", 2000) == 0
    assert create("M3", "memory", 2000) == 10028, "5000 bytes of memory in this account"
    for name in ("F1", "M1", "M2"):
        client.request(f"$JS.API.STREAM.DELETE.{name}")
    client.close()
