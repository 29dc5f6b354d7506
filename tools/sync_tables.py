"""What tools/generate_sync.py knows about the classes of the async client, beyond their source."""

from __future__ import annotations

import penstock.client

MODULES: dict[str, tuple[str, list[str]]] = {
    "sync_client": ("The client and its options.", ["Client"]),
    "sync_messages": ("Messages.", ["Msg", "JsMsg", "ServiceMsg"]),
    "sync_subscriptions": ("Subscriptions.", ["Subscription", "PushSubscription", "OrderedPushSubscription"]),
    "sync_jetstream": ("The JetStream context.", ["JetStream"]),
    "sync_stream": ("Streams.", ["Stream"]),
    "sync_consumers": (
        "Consumers of streams.",
        ["Consumer", "Fetch", "Consume", "OrderedConsumer", "OrderedConsume"],
    ),
    "sync_publishing": (
        "Publishing to streams.",
        ["PendingAck", "FastPendingAck", "Publisher", "FastPublisher", "AtomicBatch", "FastIngest"],
    ),
    "sync_keyvalue": (
        "Key-value buckets.",
        ["KeyValue", "KeyValueBatch", "KeyWatcher", "KeyLease", "KeyLock", "LeaderElection"],
    ),
    "sync_objectstore": ("Object stores.", ["ObjectStore", "ObjectReader", "ObjectWatcher"]),
    "sync_services": ("Services.", ["Service", "ServiceGroup", "ServiceEndpoint", "Services"]),
}
MODULE_OF = {name: module for module, (_, names) in MODULES.items() for name in names}
ASYNC = {name: getattr(penstock.client, name) for name in MODULE_OF}

BASES = {
    "Subscription": "MessageReader[Msg]",
    "PushSubscription": "MessageReader[JsMsg]",
    "OrderedPushSubscription": "PushSubscription",
    "Msg": "MessageWrapper",
    "JsMsg": "Msg",
    "ServiceMsg": "Msg",
    "Consume": "QueueReader[JsMsg]",
    "OrderedConsume": "Consume",
    "Fetch": "Fetched[JsMsg]",
    "FastPendingAck": "PendingAck",
    "KeyWatcher": "QueueReader[KeyValueEntry | None]",
    "ObjectWatcher": "QueueReader[ObjectInfo | None]",
    "ObjectReader": "ChunkReader",
    "KeyLock": "LockBlock",
}
# Public attributes of instances, with their types.
ATTRIBUTES = {
    "AtomicBatch": {"id": "str", "size": "int"},
    "Consumer": {"name": "str", "stream_name": "str"},
    "FastIngest": {"id": "str"},
    "FastPublisher": {"acked": "int", "failed": "int"},
    "JetStream": {"prefix": "str", "timeout": "float"},
    "KeyLease": {"key": "str", "holder": "str", "token": "int"},
    "KeyValue": {"js": "JetStream", "stream": "Stream", "bucket": "str"},
    "KeyValueBatch": {"revisions": "dict[str, int]"},
    "LeaderElection": {"candidate": "str"},
    "ObjectStore": {"js": "JetStream", "stream": "Stream", "bucket": "str"},
    "FastPendingAck": {"seq": "int"},
    "Publisher": {"acked": "int", "failed": "int"},
    "PushSubscription": {"stream_name": "str", "consumer_name": "str", "dropped": "int"},
    "Service": {"name": "str", "version": "str", "id": "str", "description": "str"},
    "ServiceEndpoint": {"info": "EndpointInfo"},
    "ServiceMsg": {"has_responded": "bool", "error": "ServiceError | None"},
    "Stream": {"name": "str"},
    "Subscription": {
        "subject": "str",
        "queue": "str",
        "received": "int",
        "dropped": "int",
        "max_messages": "int",
    },
}
# What a type variable of a base class stands for.
VARIABLES = {"KeyWatcher": "KeyValueEntry", "ObjectWatcher": "ObjectInfo"}
LEFT_OUT = {
    "Client": {"loop"},
    "KeyLease": {"error", "call_when_lost"},
    "KeyValue": {"last_entry", "last_entries"},
    "OrderedConsumer": {"renew", "handed_out"},
    "OrderedPushSubscription": {"renew"},
    "PendingAck": {"is_seen"},
    "PushSubscription": {"follow"},
    "Stream": {"session"},
    "Fetch": {"ended"},
    "Service": {"attach"},
    "Subscription": {"start_callback"},
}
# Coroutines that only publish: their statements are copied without `await`, and run in the calling thread.
PUBLISHING = {
    ("Client", "publish"),
    ("Client", "publish_many"),
    ("Msg", "respond"),
    ("JsMsg", "ack"),
    ("JsMsg", "nak"),
    ("JsMsg", "term"),
    ("JsMsg", "in_progress"),
    ("ServiceMsg", "respond"),
    ("ServiceMsg", "respond_error"),
    ("Publisher", "publish"),
}
# Coroutines that await nothing but requests and pauses: they run in the calling thread.
REQUESTS = {
    ("Client", "request"),
    ("JetStream", "publish"),
    ("KeyValue", "create"),
    ("KeyValue", "delete"),
    ("KeyValue", "get"),
    ("KeyValue", "purge"),
    ("KeyValue", "put"),
    ("KeyValue", "update"),
    ("Stream", "get_message"),
    ("Stream", "get_last_message"),
}
# Methods that use no part of the event loop: they are called in the calling thread.
PLAIN = {
    "Client": {"jetstream", "new_inbox", "services"},
    "JetStream": {"atomic_batch", "fast_ingest", "publisher"},
    "KeyLease": {"check"},
    "KeyValue": {"batch", "elect", "lock", "watch"},
    "KeyValueBatch": {"create", "delete", "purge", "put", "update"},
    "ObjectStore": {"open", "watch"},
    "PendingAck": {"done", "exception", "result"},
    "FastPendingAck": {"done", "result"},
    "Service": {"group", "info", "ping", "reset", "stats"},
    "ServiceGroup": {"group"},
    "ServiceEndpoint": {"reset", "stats"},
    "Stream": {"ordered_consumer"},
    "Consumer": {"fetch", "fetch_bytes"},
}
# Counts of what the async client holds: the wrapper holds some more.
BUFFERED = {
    ("Subscription", "pending_messages"),
    ("PushSubscription", "pending_messages"),
    ("Consume", "buffered"),
}
BODIES = {
    ("Client", "close"): "self._run(self._inner.close())\nself._portal.closed()",
    ("Client", "drain"): "self._run(self._inner.drain(timeout))\nself._portal.closed()",
    ("Client", "__enter__"): "return self",
    ("Client", "__exit__"): "self.close()",
    ("Consume", "stop"): "self._buffer.clear()\nself._call(self._inner.stop)",
    ("KeyLock", "__enter__"): "return cast(KeyLease, self._enter())",
    ("KeyLock", "__exit__"): "self._exit(kind)",
}
WRAPPED_ARGUMENTS = {
    "MessageCallback": "self._portal.callback({})",
    "JsMessageCallback": "self._portal.callback({})",
    "ServiceHandler": "self._portal.callback({})",
    "WarningCallback": "self._portal.event({})",
    "Callable": "self._portal.event({})",
    "Sentinel": "self._portal.inline({})",
    "ObjectData": "self._portal.pieces({})",
    "ObjectStore": "unwrap({})",
}
CALLABLES = {
    "MessageCallback", "JsMessageCallback", "ServiceHandler", "Sentinel", "ClientCallback", "ErrorCallback",
    "TokenCallback", "Secret", "SignatureCallback", "WebsocketHeaders", "ObjectData",
}  # fmt: skip
LINE = 110
RUNTIME = {
    *("ChunkReader", "Fetched", "LockBlock", "MessageReader", "MessageWrapper", "QueueReader", "Wrapper"),
}

WORDS = [
    ("`async with` raises", "`with` block raises"),
    ("async with", "with"),
    ("async for", "for"),
    ("An async iterator", "An iterator"),
    ("iterable or async\n        iterable", "iterable"),
    ("function or coroutine function", "function"),
    ("functions or coroutine functions", "functions"),
    ("as an async generator", "as an iterator"),
    ("Await the result for a list, or iterate it.", "Use the result as a list, or iterate it as they come."),
    (
        "Await it for a list, or iterate it, once.",
        "Use it as a list, or iterate it: the messages as they come.",
    ),
    ("Awaiting or iterating raises", "Using or iterating it raises"),
    ("Awaiting raises", "`wait` raises"),
    ("Await it for its PubAck", "Wait for its PubAck"),
    ("Awaiting it commits", "`wait` commits"),
    ("by awaiting a `PendingAck`", "by `PendingAck.wait`"),
    ("which may be awaited", "which has `wait`"),
    ("asyncio.InvalidStateError", "asyncio.InvalidStateError"),
    ("another task", "another thread"),
    ("fails or is cancelled", "fails or is interrupted"),
    ("await ", ""),
    (
        "the block is cancelled at its next and the",
        "the block is not interrupted: its lease's `check` raises, and the",
    ),
]
