"""Errors for unknown keyword arguments, with a suggestion.

The mappings below translate keywords of nats-py, from which users migrate. Rejected: accepting both names
(two ways to write every program, and no way to remove the second).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

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
    "reconnected_cb": "on_reconnected",
    "user_credentials": "credentials",
    "verbose": "nothing: +OK answers carry no information",
}
SUBSCRIBE: Mapping[str, str] = {
    "cb": "callback",
    "future": "nothing: await subscription.next()",
    "max_msgs": "nothing: await subscription.unsubscribe(max_messages)",
    "pending_bytes_limit": "max_pending_bytes",
    "pending_msgs_limit": "max_pending_messages",
}
PUBLISH: Mapping[str, str] = {"msg_ttl": "ttl", "stream": "expected_stream"}
CONFIG: Mapping[str, str] = {"durable": "durable_name", "flow_ctrl": "flow_control"}


def hint(name: str, known: Iterable[str], renamed: Mapping[str, str]) -> str:
    """`"; did you mean ack_wait?"`, or the replacement of a nats-py keyword; "" if nothing is similar."""
    replacement = renamed.get(name)
    if replacement is not None:
        return f"; instead of nats-py's {name} use {replacement}"
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_keyword(
    function: str, given: Iterable[str], known: Iterable[str], renamed: Mapping[str, str]
) -> TypeError:
    """The TypeError for the first of `given`, worded as Python's, with a hint.

    known: the keywords of `function`. renamed: one of the mappings above.
    """
    name = next(iter(given))
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint(name, known, renamed)}")
