"""Errors for unknown keyword arguments, with a suggestion.

The mappings below translate keywords of nats-py, from which users migrate. Rejected: accepting both names
(two ways to write every program, and no way to remove the second).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Never

# nats-py's keywords per function and their replacements; a value with a space is an explanation.
CONNECT: Mapping[str, str] = {
    "allow_reconnect": "reconnect",
    "closed_cb": "on_closed",
    "disconnected_cb": "on_disconnected",
    "discovered_server_cb": "on_discovered",
    "dont_randomize": "randomize=False",
    "error_cb": "on_error",
    "flush_timeout": "request_timeout",
    "flusher_queue_size": "nothing: the client has no flusher queue",
    "lame_duck_mode_cb": "on_lame_duck",
    "max_reconnect_attempts": "max_reconnects",
    "nkeys_seed": "nkey_seed_file",
    "nkeys_seed_str": "nkey_seed",
    "no_echo": "echo=False",
    "pending_size": "reconnect_buffer_bytes",
    "reconnect_time_wait": "reconnect_wait",
    "reconnect_to_server_handler": "choose_server",
    "reconnected_cb": "on_reconnected",
    "skip_subject_validation": "nothing: validated subjects are cached",
    "user_credentials": "credentials",
    "verbose": "nothing: +OK answers carry no information",
    "ws_connection_headers": "websocket_headers",
}
SUBSCRIBE: Mapping[str, str] = {
    "cb": "callback",
    "future": "nothing: await subscription.next()",
    "max_msgs": "nothing: await subscription.unsubscribe(max_messages)",
    "pending_bytes_limit": "max_pending_bytes",
    "pending_msgs_limit": "max_pending_messages",
}
PUSH: Mapping[str, str] = {
    "cb": "callback",
    "config": "its fields as keywords",
    "flow_ctrl": "flow_control",
    "manual_ack": "nothing: messages are acked by msg.ack(); auto_ack=True acks after the callback",
    "ordered_consumer": "ordered",
    "pending_bytes_limit": "max_pending_bytes",
    "pending_msgs_limit": "max_pending_messages",
}
PUBLISH: Mapping[str, str] = {"msg_ttl": "ttl", "stream": "expected_stream"}
CONFIG: Mapping[str, str] = {"durable": "durable_name", "flow_ctrl": "flow_control"}


CLIENT: Mapping[str, str] = {
    "client_id": "server_info.client_id",
    "client_ip": "server_info.client_ip",
    "connected_server_version": "server_info.version",
    "is_connecting": "state",
    "is_draining": "state",
    "is_draining_pubs": "state",
    "is_reconnecting": "state",
    "jsm": "jetstream()",
    "pending_data_size": "pending_bytes",
    "server_pool": "servers",
    "set_server_pool": "set_servers()",
    "ssl_context": "options.tls",
}
SUBSCRIPTION: Mapping[str, str] = {
    "delivered": "received",
    "messages": "the subscription itself: async for msg in subscription",
    "next_msg": "next()",
    "pending_msgs": "pending_messages",
}
MESSAGE: Mapping[str, str] = {"header": "headers", "is_acked": "is_settled", "sid": "raw[0]"}
JETSTREAM: Mapping[str, str] = {
    "add_consumer": "create_consumer()",
    "add_stream": "create_stream()",
    "consumer_info": "consumer(stream, name), whose cached_info it is",
    "consumers_info": "stream(name) and its consumers()",
    "delete_msg": "stream(name) and its delete_message()",
    "find_stream_name_by_subject": "stream_names(subject)",
    "get_last_msg": "stream(name) and its get_last_message()",
    "get_msg": "stream(name) and its get_message()",
    "pause_consumer": "stream(name) and its pause_consumer()",
    "publish_async": "publisher()",
    "publish_async_completed": "publisher(), whose flush() waits for all acks",
    "publish_async_pending": "publisher()",
    "pull_subscribe": "create_consumer(), and its fetch() or consume()",
    "pull_subscribe_bind": "consumer(stream, name), and its fetch() or consume()",
    "purge_stream": "stream(name) and its purge()",
    "reset_consumer": "consumer(stream, name) and its reset()",
    "resume_consumer": "stream(name) and its resume_consumer()",
    "streams_info": "streams()",
    "streams_info_iterator": "streams()",
    "subscribe_bind": "bind()",
}


class _Renamed:
    """Internal. What stands for an attribute of nats-py: reading it is an AttributeError that names ours."""

    __slots__ = ("_advice", "_name")

    def __init__(self, name: str, replacement: str) -> None:
        self._name = name
        self._advice = _instead(name, replacement)

    def __get__(self, found: object, kind: type) -> Never:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}{self._advice}")


class NatsPyNames:
    """Base of classes whose AttributeError names the counterpart of nats-py's attribute.

    nats_py_names: one of the mappings above. Similar names of misspelt attributes come from Python itself,
    at the end of the traceback. Rejected: `__getattr__`, for CPython 3.11 does not specialise attributes and
    methods of a class that has one, which costs `Client.publish` a tenth of its time.
    """

    __slots__ = ()
    nats_py_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, replacement in cls.nats_py_names.items():
            if not hasattr(cls, name):
                setattr(cls, name, _Renamed(name, replacement))

    def __dir__(self) -> list[str]:
        renamed = self.nats_py_names
        return [name for name in super().__dir__() if name not in renamed or hasattr(self, name)]


def hint(name: str, known: Iterable[str], renamed: Mapping[str, str]) -> str:
    """`"; did you mean ack_wait?"`, or the replacement of a nats-py keyword; "" if nothing is similar."""
    replacement = renamed.get(name)
    if replacement is not None:
        return _instead(name, replacement)
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _instead(name: str, replacement: str) -> str:
    return f"; instead of nats-py's {name} use {replacement}"


def unknown_keyword(
    function: str, given: Iterable[str], known: Iterable[str], renamed: Mapping[str, str]
) -> TypeError:
    """The TypeError for the first of `given`, worded as Python's, with a hint.

    known: the keywords of `function`. renamed: one of the mappings above.
    """
    name = next(iter(given))
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint(name, known, renamed)}")
