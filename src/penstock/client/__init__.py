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

    connection.py, connection_listener.py, connector.py, servers.py
                         one TCP or TLS connection; making connections; the servers to try
    websocket_transport.py
                         the same by WebSocket
    options.py, keywords.py, credentials.py, info.py
                         settings, credentials, the server's INFO
    codec.py             typed payloads
    subscription.py, queue.py, message.py, requests.py, request_many.py, payloads.py, tracing.py
                         core NATS: subscriptions, request and reply, trace contexts; otel.py
    service_endpoints.py, service_records.py, services.py
                         services: endpoints; what they say of themselves; discovery and requests
    jetstream.py, stream.py, direct.py, config.py, settings.py, conflicts.py
                         streams: management, direct gets, configurations and their types as keywords; what
                         a refused configuration conflicts with
    publishing.py, publisher.py, fastpublisher.py, fastingest.py, atomic.py, schedules.py
                         publishing to streams: single, windowed, batches, schedules
    consumer.py, pull.py, fetch.py, consume.py, ordered.py, jsmsg.py
                         consuming from streams
    arrow.py             streams as Arrow record batches, tables as messages
    push_subscription.py, push_manager.py
                         push consumers
    marked.py, keyvalue/, objectstore/
                         watches; key-value buckets; object stores

Invariants: a subscription holds a bounded number of pending messages, and drops further ones with an error;
an operation either succeeds or raises an exception from `penstock.errors` (or asyncio's CancelledError);
after a reconnect, subscriptions are restored before waiting publishes are sent. `JetStream`, `Stream` and
`Consumer` are handles that send requests; the server's counterparts are `JetStreamEngine`, `StreamReplica`
and `ConsumerReplica`.
"""

from penstock.extras import need_python

need_python("penstock.client")  # before an import that Python 3.10 cannot make

from penstock.client.atomic import AtomicBatch
from penstock.client.client import Client, Connecting, connect
from penstock.client.client_session import ClientState, ClientStats
from penstock.client.codec import Codec
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
from penstock.client.fastpublisher import FastPendingAck, FastPublisher
from penstock.client.fetch import Fetch
from penstock.client.info import ServerInfo
from penstock.client.jetstream import JetStream
from penstock.client.jsmsg import JsMsg
from penstock.client.keyvalue.bucket_config import KeyValueConfig, KeyValueSettings, KeyValueStatus
from penstock.client.keyvalue.election import LeaderElection
from penstock.client.keyvalue.key_batch import KeyValueBatch
from penstock.client.keyvalue.key_entry import KeyOperation, KeyValueEntry
from penstock.client.keyvalue.key_value import KeyValue
from penstock.client.keyvalue.key_watch import KeyWatcher
from penstock.client.keyvalue.lease import KeyLease
from penstock.client.keyvalue.lock import KeyLock
from penstock.client.message import Msg
from penstock.client.objectstore.object_config import (
    ObjectStoreConfig,
    ObjectStoreSettings,
    ObjectStoreStatus,
)
from penstock.client.objectstore.object_info import ObjectInfo, ObjectLink
from penstock.client.objectstore.object_reader import ObjectReader
from penstock.client.objectstore.object_store import ObjectStore
from penstock.client.objectstore.object_watch import ObjectWatcher
from penstock.client.options import ConnectOptions, Options
from penstock.client.ordered import OrderedConsume, OrderedConsumer
from penstock.client.publisher import PendingAck, Publisher
from penstock.client.publishing import PublishOptions
from penstock.client.pull import PriorityOptions
from penstock.client.push_subscription import OrderedPushSubscription, PushSubscription
from penstock.client.servers import ServerCandidate
from penstock.client.service_endpoints import Service, ServiceEndpoint, ServiceGroup, ServiceMsg
from penstock.client.service_records import (
    EndpointInfo,
    EndpointSchema,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
)
from penstock.client.services import Services
from penstock.client.settings import ConsumerSettings, OrderedConsumerSettings, StreamSettings
from penstock.client.stream import Stream
from penstock.client.subscription import Subscription
from penstock.client.tracing import Tracing
from penstock.protocol.api import (
    AccountInfo,
    AckPolicy,
    DeliverPolicy,
    DiscardPolicy,
    ExternalStream,
    Placement,
    PubAck,
    ReplayPolicy,
    Republish,
    RetentionPolicy,
    StorageType,
    StreamSource,
    SubjectTransform,
)
from penstock.protocol.headers import Headers

__all__ = [
    "AccountInfo",
    "AckPolicy",
    "AtomicBatch",
    "Client",
    "ClientState",
    "ClientStats",
    "Codec",
    "ConnectOptions",
    "Connecting",
    "Consume",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerPause",
    "ConsumerSettings",
    "DeliverPolicy",
    "DiscardPolicy",
    "EndpointInfo",
    "EndpointSchema",
    "EndpointStats",
    "ExternalStream",
    "FastIngest",
    "FastPendingAck",
    "FastPubAck",
    "FastPublisher",
    "Fetch",
    "Headers",
    "JetStream",
    "JsMsg",
    "KeyLease",
    "KeyLock",
    "KeyOperation",
    "KeyValue",
    "KeyValueBatch",
    "KeyValueConfig",
    "KeyValueEntry",
    "KeyValueSettings",
    "KeyValueStatus",
    "KeyWatcher",
    "LeaderElection",
    "Msg",
    "ObjectInfo",
    "ObjectLink",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreConfig",
    "ObjectStoreSettings",
    "ObjectStoreStatus",
    "ObjectWatcher",
    "Options",
    "OrderedConsume",
    "OrderedConsumer",
    "OrderedConsumerSettings",
    "OrderedPushSubscription",
    "PendingAck",
    "Placement",
    "PriorityOptions",
    "PubAck",
    "PublishOptions",
    "Publisher",
    "PushSubscription",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "ServerCandidate",
    "ServerInfo",
    "Service",
    "ServiceEndpoint",
    "ServiceGroup",
    "ServiceInfo",
    "ServiceMsg",
    "ServicePing",
    "ServiceStats",
    "Services",
    "StorageType",
    "StoredMessage",
    "Stream",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamInfo",
    "StreamSettings",
    "StreamSource",
    "StreamSourceInfo",
    "SubjectTransform",
    "Subscription",
    "Tracing",
    "connect",
]
