"""Trace contexts across messages: what a tracer has to offer to the client.

Publishes and requests carry the publisher's context in their headers, and callbacks and handlers run in the
context of their message. Messages that are read by iteration or `next` have no block of their own: use
`with tracing.handling(msg): ...`.

Batches (`AtomicBatch`, `FastIngest`) carry no context: their messages belong together, and a header for each
would cost more than the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from penstock.client.message import HeadersLike, Msg

if TYPE_CHECKING:
    from penstock.client.publishing import PublishOptions

Message = TypeVar("Message", bound=Msg)


class Tracing(Protocol):
    """A tracer, given to `connect(tracing=...)`. Its methods must be quick, and must not raise."""

    def inject(self, headers: HeadersLike | None) -> HeadersLike | None:
        """The headers of a message that is published now, with the current context; not changed in place."""

    def handling(self, msg: Msg) -> AbstractContextManager[object]:
        """A block in which the message's context is the current one. It sees what the block raises."""


def traced(tracing: Tracing | None, callback: Callable[[Message], Any]) -> Callable[[Message], Any]:
    """The callback, run in the context of its message."""
    if tracing is None:
        return callback

    async def run(msg: Message) -> Any:
        with tracing.handling(msg):
            result = callback(msg)
            return await result if inspect.isawaitable(result) else result

    return run


def with_context(tracing: Tracing, options: PublishOptions) -> PublishOptions:
    """Options of a publish to a stream, with the current context in their headers."""
    headers = tracing.inject(options.get("headers"))
    return cast("PublishOptions", {**options, "headers": headers})
