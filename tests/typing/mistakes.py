"""The sample program of every public call, and mistakes that a type checker has to refuse."""

from __future__ import annotations

from pathlib import Path

SAMPLE = Path(__file__).with_name("sample.py").read_text()

# A wrong line in a function with these arguments, and what mypy says of it.
MISTAKES = {
    "client.publish('a', 5)": "arg-type",
    "await client.publish(b'a', b'')": "arg-type",
    "await client.publish('a', b'', header={})": "call-arg",
    "await client.request('a', timeout='1')": "arg-type",
    "(await client.request('a')).body": "attr-defined",
    "await client.subscribe('a', cb=print)": "arg-type",
    "await client.subscribe('a', callback=5)": "arg-type",
    "connect(reconect=True)": "call-arg",
    "connect(reconnect_wait='1')": "arg-type",
    "connect(on_error=lambda error: None)": "arg-type",
    "await js.create_stream('S', subject=['s'])": "call-arg",
    "await js.create_stream('S', subjects='s')": "arg-type",
    "await js.create_stream('S', storage='disk')": "arg-type",
    "await js.create_stream('S', max_age='1d')": "arg-type",
    "await js.create_stream('S', retention='work')": "arg-type",
    "await js.publish('s', b'', message_id='1')": "call-arg",
    "await js.publish('s', b'', msg_id=1)": "arg-type",
    "(await js.publish('s')).sequence": "attr-defined",
    "await stream.create_consumer('c', durable='c')": "call-arg",
    "await stream.create_consumer('c', ack_policy='explicitly')": "arg-type",
    "await stream.create_consumer('c', ack_wait='30s')": "arg-type",
    "stream.ordered_consumer(ack_policy='none')": "call-arg",
    "await stream.get_message('1')": "arg-type",
    "(await js.consumer('S', 'c')).fetch('10')": "arg-type",
    "js.fast_ingest('s', gap='skip')": "arg-type",
    "await (await js.key_value('B')).put('k', 5)": "arg-type",
    "await (await js.key_value('B')).update('k', b'')": "call-arg",
    "await js.create_key_value('B', max_value=5)": "call-arg",
    "await (await js.object_store('O')).put('o', 5)": "arg-type",
    "orders.encode('pear')": "arg-type",
    "orders.decode(b'').price": "attr-defined",
    "Server(jetstrem=True)": "call-arg",
    "Server(max_payload='1MB')": "arg-type",
}


def without_async(text: str) -> str:
    """A program of the async client for penstock.sync."""
    for old, new in [
        ("async with ", "with "), ("async for ", "for "), ("async def ", "def "), ("await ", ""),
        ("penstock.client", "penstock.sync"), ("AsyncIterator", "Iterator"),
    ]:  # fmt: skip
        text = text.replace(old, new)
    return text


def planted(mistakes: list[str]) -> str:
    head = """
from dataclasses import dataclass
from penstock.client import Client, Codec, JetStream, Stream, connect
from penstock.server import Server

@dataclass
class Order:
    fruit: str

orders = Codec(Order)

async def wrong(client: Client, js: JetStream, stream: Stream) -> None:
"""
    return head + "".join(f"    {line}\n" for line in mistakes)
