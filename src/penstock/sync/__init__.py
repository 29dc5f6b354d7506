"""The client for NATS and JetStream without async: for scripts, notebooks, Flask and Django.

    import penstock.sync

    with penstock.sync.connect("nats://127.0.0.1:4222") as client:
        client.publish("greet.joe", b"hello")

        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"])
        js.publish("orders.new", b"...")
        consumer = stream.create_consumer("billing")
        for msg in consumer.fetch(100):
            msg.ack()

It has what `penstock.client` has, under the same names and with the same arguments; a call that is awaited
there blocks here. Everything may be used from several threads. Callbacks and service handlers run in threads
of their own, may block, and may use the client.

The async client runs in one thread of the process, on its own event loop
(docs/decisions/0026-sync-client.md). The classes are generated from those of the async client by
tools/generate_sync.py; by hand are

    loop_thread.py       the thread, calls from other threads, fork, the end of the process
    callbacks.py         the threads of callbacks
    thread_session.py    publishes from any thread
    wrapper.py           base classes: what a call does, and what an iteration does
    connecting.py, callables.py
                         `connect`, and the types of callbacks
"""

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
from penstock.client.direct import StoredMessage
from penstock.client.fastingest import FastPubAck
from penstock.client.info import ServerInfo
from penstock.client.keyvalue.bucket_config import KeyValueConfig, KeyValueSettings, KeyValueStatus
from penstock.client.keyvalue.key_entry import KeyOperation, KeyValueEntry
from penstock.client.objectstore.object_config import (
    ObjectStoreConfig,
    ObjectStoreSettings,
    ObjectStoreStatus,
)
from penstock.client.objectstore.object_info import ObjectInfo, ObjectLink
from penstock.client.options import Options
from penstock.client.publishing import PublishOptions
from penstock.client.pull import PriorityOptions
from penstock.client.servers import ServerCandidate
from penstock.client.service_records import (
    EndpointInfo,
    EndpointSchema,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
)
from penstock.client.settings import ConsumerSettings, OrderedConsumerSettings, StreamSettings
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
from penstock.sync.connecting import connect
from penstock.sync.sync_client import Client, ConnectOptions
from penstock.sync.sync_consumers import Consume, Consumer, Fetch, OrderedConsume, OrderedConsumer
from penstock.sync.sync_jetstream import JetStream
from penstock.sync.sync_keyvalue import KeyLease, KeyLock, KeyValue, KeyValueBatch, KeyWatcher, LeaderElection
from penstock.sync.sync_messages import JsMsg, Msg, ServiceMsg
from penstock.sync.sync_objectstore import ObjectReader, ObjectStore, ObjectWatcher
from penstock.sync.sync_publishing import (
    AtomicBatch,
    FastIngest,
    FastPendingAck,
    FastPublisher,
    PendingAck,
    Publisher,
)
from penstock.sync.sync_services import Service, ServiceEndpoint, ServiceGroup, Services
from penstock.sync.sync_stream import Stream
from penstock.sync.sync_subscriptions import OrderedPushSubscription, PushSubscription, Subscription

__all__ = [
    "AccountInfo",
    "AckPolicy",
    "AtomicBatch",
    "Client",
    "ClientState",
    "ClientStats",
    "Codec",
    "ConnectOptions",
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
