"""The asyncio client for NATS and JetStream.

    import penstock.client

    async with penstock.client.connect("nats://127.0.0.1:4222") as client:
        await client.publish("greet.joe", b"hello")

        js = client.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.>"])
        await js.publish("orders.new", b"...")
        consumer = await stream.create_consumer("billing")
        async for msg in consumer.messages():
            await msg.ack()

It works with penstock's server and the official one, on asyncio's event loop and on uvloop.

Read first `client.py` (the public object) and `client_session.py` (its state: subscriptions, requests in
flight, reconnects). A message arrives through `connection.py`.

    connection.py, connection_listener.py, servers.py
                         one TCP or TLS connection; the servers to try
    options.py, keywords.py, credentials.py, info.py
                         settings, credentials, the server's INFO
    subscription.py, queue.py, message.py, requests.py, payloads.py
                         core NATS: subscriptions, request and reply
    jetstream.py, stream.py, direct.py, config.py
                         streams: management, direct gets, configurations
    publishing.py, publisher.py, fastpublisher.py, fastingest.py, atomic.py, schedules.py
                         publishing to streams: single, windowed, batches, schedules
    consumer.py, pull.py, fetch.py, consume.py, ordered.py, jsmsg.py
                         consuming from streams

Invariants: a subscription holds a bounded number of pending messages, and drops further ones with an error;
an operation either succeeds or raises an exception from `penstock.errors` (or asyncio's CancelledError);
after a reconnect, subscriptions are restored before waiting publishes are sent. `JetStream`, `Stream` and
`Consumer` are handles that send requests; the server's counterparts are `JetStreamEngine`, `StreamReplica`
and `ConsumerReplica`.
"""

from penstock.client.atomic import AtomicBatch
from penstock.client.client import Client, Connecting, connect
from penstock.client.client_session import ClientState
from penstock.client.config import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerPause,
    StreamConfig,
    StreamConsumerLimits,
    StreamInfo,
    StreamSourceInfo,
)
from penstock.client.consume import Consume
from penstock.client.consumer import Consumer
from penstock.client.direct import StoredMessage
from penstock.client.fastingest import FastIngest, FastPubAck
from penstock.client.fastpublisher import FastPublisher
from penstock.client.fetch import Fetch
from penstock.client.info import ServerInfo
from penstock.client.jetstream import JetStream
from penstock.client.jsmsg import JsMsg
from penstock.client.message import Msg
from penstock.client.options import ConnectOptions, Options
from penstock.client.ordered import OrderedConsume, OrderedConsumer
from penstock.client.publisher import PendingAck, Publisher
from penstock.client.publishing import PublishOptions
from penstock.client.pull import PriorityOptions
from penstock.client.stream import Stream
from penstock.client.subscription import Subscription
from penstock.protocol.api import (
    AccountInfo,
    AckPolicy,
    DeliverPolicy,
    DiscardPolicy,
    PubAck,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
)
from penstock.protocol.headers import Headers

__all__ = [
    "AccountInfo",
    "AckPolicy",
    "AtomicBatch",
    "Client",
    "ClientState",
    "ConnectOptions",
    "Connecting",
    "Consume",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerPause",
    "DeliverPolicy",
    "DiscardPolicy",
    "FastIngest",
    "FastPubAck",
    "FastPublisher",
    "Fetch",
    "Headers",
    "JetStream",
    "JsMsg",
    "Msg",
    "Options",
    "OrderedConsume",
    "OrderedConsumer",
    "PendingAck",
    "PriorityOptions",
    "PubAck",
    "PublishOptions",
    "Publisher",
    "ReplayPolicy",
    "RetentionPolicy",
    "ServerInfo",
    "StorageType",
    "StoredMessage",
    "Stream",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamInfo",
    "StreamSourceInfo",
    "Subscription",
    "connect",
]
