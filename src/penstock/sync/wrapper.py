"""What the generated classes of `penstock.sync` are made of: the portal of a client, and base classes.

A wrapper holds an object of the async client (`_inner`) and the portal of its client. The generated methods
call the method of the same name: on the loop's thread, or in the calling thread where the async method only
reads or publishes. `Portal.wrap` turns what comes back into wrappers.

Invariant: a message taken from a queue of the async client is in the wrapper's buffer or was returned to a
caller. An interrupted call loses none.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import msgspec

from penstock.errors import RequestTimeoutError
from penstock.sync.callbacks import CallbackThreads, EventThread
from penstock.sync.loop_thread import LoopThread, loop_thread

if TYPE_CHECKING:
    from penstock.client.options import ConnectOptions as AsyncOptions
    from penstock.sync.sync_client import Client, ConnectOptions

T = TypeVar("T")

# Messages taken from the loop's thread at once by an iteration. At 100,000 messages a second, a round trip to
# the thread for each would be most of the cost.
BATCH = 256
EVENTS = (
    "on_connected",
    "on_disconnected",
    "on_reconnected",
    "on_closed",
    "on_error",
    "on_lame_duck",
    "on_discovered",
)
IN_THREADS = ("user", "password", "token", "user_jwt_cb", "signature_cb", "websocket_headers")
EVENTS_END_S = 1.0

# Async class -> its wrapper; the generated modules add theirs.
WRAPPERS: dict[type, Callable[[Any, Portal], object]] = {}


class Portal:
    """The way from threads to the objects of one async client, and back for its callbacks."""

    def __init__(self) -> None:
        self.thread: LoopThread = loop_thread()
        self.client: Client | None = None
        self._callbacks = CallbackThreads()
        self._events = EventThread()

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the loop and return its result, or raise what it raises."""
        return self.thread.run(work)

    def wrap(self, value: Any) -> Any:
        """Wrappers for objects of the async client, in lists and tuples too; other values as they are."""
        kind = WRAPPERS.get(type(value))
        if kind is not None:
            return kind(value, self)
        if type(value) is list:
            return [self.wrap(one) for one in value]
        if type(value) is tuple:
            return tuple(self.wrap(one) for one in value)
        if self.client is not None and value is self.client._inner:
            return self.client
        return value

    # --- callbacks -----------------------------------------------------------------------------

    def callback(self, function: Callable[..., Any] | None) -> Any:
        """A coroutine function that calls `function` in a thread, with wrappers as arguments."""
        if function is None:
            return None

        @functools.wraps(function)
        async def call(*arguments: Any) -> Any:
            return unwrap(await self._callbacks.run(function, *map(self.wrap, arguments)))

        return call

    def event(self, function: Callable[..., object] | None) -> Any:
        """A function that has `function` called after the earlier events, with wrappers as arguments."""
        if function is None:
            return None
        return lambda *arguments: self._events.post(function, *map(self.wrap, arguments))

    def inline(self, function: Any) -> Any:
        """A function that calls `function` at once, on the loop's thread, with wrappers as arguments."""
        if not callable(function):
            return function
        return lambda *arguments: function(*map(self.wrap, arguments))

    def pieces(self, data: Any) -> Any:
        """An object's data: an iterable is read in a thread, as it may block or use the client."""
        if isinstance(data, bytes | bytearray | memoryview | str | os.PathLike) or hasattr(data, "read"):
            return data
        return self._pieces(data) if isinstance(data, Iterable) else data

    async def _pieces(self, data: Iterable[bytes]) -> AsyncIterator[bytes]:
        end = object()
        iterator = iter(data)
        while (piece := await self._callbacks.run(next, iterator, end)) is not end:
            yield piece

    def options(self, options: ConnectOptions) -> AsyncOptions:
        """Options of the async client: functions that may block run in threads."""
        made = cast("dict[str, Any]", dict(options))
        for name in EVENTS:
            if made.get(name) is not None:
                made[name] = self.event(made[name])
        for name in IN_THREADS:
            if callable(made.get(name)):
                made[name] = self.callback(made[name])
        return cast("AsyncOptions", made)

    # --- the client's life ---------------------------------------------------------------------

    def opening(self, client: Client) -> None:
        """The client connects."""
        self.client = client

    def opened(self) -> None:
        """The client is connected: close it at the end of the process, if nothing else does."""
        assert self.client is not None
        # By the async client, which refers to none of the wrappers: a client that is dropped is noticed.
        self.thread.close_at_exit(self.client._inner, self.client._inner.close)

    def dropped(self, client: Client) -> None:
        """Nothing refers to the client any more: close it, as the loop would keep it open."""
        inner = client._inner
        if inner.is_closed or not self.thread.is_usable or sys.is_finalizing():
            return
        text = f"unclosed {inner!r}: call client.close(), or use `with connect(...)`"
        warnings.warn(text, ResourceWarning, source=client, stacklevel=3)
        self.thread.forget(inner)
        self.thread.soon(self.thread.spawn, inner.close())

    def closed(self) -> None:
        """The client was closed: end its callbacks' thread after `on_closed`."""
        assert self.client is not None
        self.thread.forget(self.client._inner)
        self._events.end(EVENTS_END_S)


async def awaited(work: Awaitable[T]) -> T:
    """A coroutine for an awaitable object."""
    return await work


def unwrap(value: Any) -> Any:
    """The object of the async client behind a wrapper; other values as they are."""
    return value._inner if isinstance(value, WrapperMethods) else value


class WrapperMethods:
    """What all wrappers have."""

    __slots__ = ()

    if TYPE_CHECKING:
        _inner: Any
        _portal: Portal

    def __repr__(self) -> str:
        return repr(self._inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrapperMethods) and other._inner is self._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def _run(self, work: Awaitable[T]) -> T:
        return self._portal.thread.run(work)

    def _run_here(self, work: Coroutine[Any, Any, T]) -> T:
        return self._portal.thread.run_here(work)

    def _call(self, function: Callable[[], T]) -> T:
        return self._portal.thread.call(function)


class Wrapper(WrapperMethods):
    """Base of the generated classes but messages."""

    __slots__ = ("__weakref__", "_inner", "_portal")

    def __init__(self, inner: Any, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal


class MessageWrapper(WrapperMethods, msgspec.Struct, eq=False, weakref=True):
    """Base of messages: compiled code creates them, as those of the async client."""

    _inner: Any
    _portal: Portal


class QueueReader(Wrapper, Generic[T]):
    """Base of what is iterated: messages come from the loop's thread in batches, shared by all threads."""

    __slots__ = ("_buffer", "_turn")

    def __init__(self, inner: Any, portal: Portal) -> None:
        super().__init__(inner, portal)
        self._buffer: deque[T] = deque()
        self._turn = threading.Lock()  # held by the thread that waits for more

    def __iter__(self) -> Self:
        self._call(self._inner.__aiter__)
        return self

    def __next__(self) -> T:
        try:
            return self._buffer.popleft()
        except IndexError:
            pass
        with self._turn:
            while True:
                # Other threads take messages without the lock, even those that this one has waited for.
                try:
                    return self._buffer.popleft()
                except IndexError:
                    pass
                try:
                    self._run(self._more())
                except StopAsyncIteration:
                    raise StopIteration from None

    async def _more(self) -> None:
        """Wait for a message, then take others that have arrived; on the loop."""
        self._keep(await self._inner.__anext__())

    def _keep(self, first: Any, more: int = BATCH) -> None:
        """Make wrappers of a message, and of up to `more` others that have arrived."""
        inner, portal, buffer = self._inner, self._portal, self._buffer
        arrived = getattr(inner, "arrived", None)
        buffer.append(portal.wrap(first))
        if arrived is not None and (rest := arrived(more)):
            kind = cast("Callable[[Any, Portal], T]", WRAPPERS[type(rest[0])])
            buffer.extend(map(kind, rest, itertools.repeat(portal)))


class MessageReader(QueueReader[T]):
    """Base of subscriptions, which have `next` and `next_many` as well."""

    __slots__ = ()

    def _next(self, timeout: float | None) -> T:
        try:
            return self._buffer.popleft()
        except IndexError:
            pass
        end = None if timeout is None else time.monotonic() + timeout
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            text = f"no message on {self._inner!r} within {timeout:g} s"
            raise RequestTimeoutError(text, timeout_s=timeout)
        try:
            while True:
                # Other threads take messages without the lock, even those that this one has waited for.
                try:
                    return self._buffer.popleft()
                except IndexError:
                    pass
                left = None if end is None else max(end - time.monotonic(), 0.0)
                self._run(self._more_within(left))
        finally:
            self._turn.release()

    async def _more_within(self, timeout: float | None) -> None:
        self._keep(await self._inner.next(timeout))

    def _next_many(self, max_messages: int, timeout: float | None) -> list[T]:
        msgs = [self._next(timeout)]
        buffer = self._buffer
        while len(msgs) < max_messages:
            try:
                msgs.append(buffer.popleft())
            except IndexError:
                break
        return msgs


class Results(Iterator[T]):
    """What an async iterator of the client yields, read ahead by up to BATCH items. Made by many methods.

    It ends at its end, by `close`, at the end of a `with` block, or when it is no longer referred to.
    """

    def __init__(self, portal: Portal, make: Callable[[], AsyncIterator[Any]]) -> None:
        self._portal = portal
        self._make = make
        self._state = _Reading()
        self._turn = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        items = self._state.items
        try:
            return cast("T", items.popleft())
        except IndexError:
            pass
        with self._turn:
            while True:
                # Other threads take items without the lock. Nothing comes after the end: it is read first.
                has_ended = self._state.has_ended
                try:
                    return cast("T", items.popleft())
                except IndexError:
                    if has_ended:
                        break
                self._portal.run(self._state.more(self._make, self._portal))
        error, self._state.error = self._state.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End it, and what it has open in the client."""
        self._portal.run(self._state.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        state = self.__dict__.get("_state")
        if state is not None and not state.has_ended:
            self._portal.thread.soon(state.cancel)


class _Reading:
    """The task that reads an async iterator; its methods run on the loop."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.error: BaseException | None = None
        self.has_ended = False
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def more(self, make: Callable[[], AsyncIterator[Any]], portal: Portal) -> None:
        """Return when there are items, or at the end. make: called by the first call."""
        loop = portal.thread.loop
        if self._task is None and not self.has_ended:
            self._task = loop.create_task(self._read(make(), portal))
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        while not self.items and not self.has_ended:
            self._arrived = loop.create_future()
            await self._arrived

    async def _read(self, iterator: AsyncIterator[Any], portal: Portal) -> None:
        loop, items = portal.thread.loop, self.items
        try:
            async for one in iterator:
                items.append(portal.wrap(one))
                self._wake()
                if len(items) >= BATCH:
                    self._room = loop.create_future()
                    await self._room
        except BaseException as error:  # noqa: BLE001 - raised by __next__
            self.error = error
        finally:
            self.has_ended = True
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
            self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def close(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        self.items.clear()
        self.error = None

    def cancel(self) -> None:
        self.has_ended = True
        if self._task is not None:
            self._task.cancel()


class Fetched(QueueReader[T]):
    """Base of `Fetch`: a sequence of the messages, which iterates them as they come.

    It is complete once its length, an item by index or `wait` is asked for, or an iteration has ended.
    """

    __slots__ = ("_got", "_is_complete")

    def __init__(self, inner: Any, portal: Portal) -> None:
        super().__init__(inner, portal)
        self._got: list[T] = []
        self._is_complete = False

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]  # several iterations, each from the start
        at = 0
        while True:
            if at < len(self._got):
                yield self._got[at]
                at += 1
            elif not self._advance():
                return

    def __next__(self) -> T:
        raise TypeError("iterate a fetch by `for msg in fetch`, or use its items by index")

    def _advance(self) -> bool:
        """Wait for a message; False at the end. Raises the error that ended the fetch."""
        with self._turn:
            if self._is_complete:
                return False
            try:
                self._run(self._more())
            except StopAsyncIteration:
                self._is_complete = True
            except Exception:
                self._is_complete = True
                raise
            self._got.extend(self._buffer)
            self._buffer.clear()
            return True

    async def _more(self) -> None:
        inner = self._inner
        if inner._subscription is None:
            inner.__aiter__()
        first = await inner.__anext__()
        if inner._items:
            # One of many: what the socket has meanwhile comes along, which saves a round trip to this thread.
            # The first turn of the loop sees that it can be read, the second one is after it was read.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        # All of them: what a pull brings comes at once, and fewer would cost another round trip.
        self._keep(first, len(inner._items))
        if inner._ended and inner._error is None and not inner._items:
            self._is_complete = True

    def _all(self) -> list[T]:
        if not self._is_complete:
            with self._turn:
                if self._inner._subscription is None:
                    self._is_complete = True
                    self._got = self._portal.wrap(self._run(awaited(self._inner)))
                    return list(self._got)
            try:
                for _ in self:
                    pass
            except Exception:
                if not self._got:
                    raise
        return self._got

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        return bool(self._all())

    def __getitem__(self, at: Any) -> Any:
        return self._all()[at]

    def __eq__(self, other: object) -> bool:
        return self._all() == other if isinstance(other, list) else self is other

    __hash__ = Wrapper.__hash__


class LockBlock(Wrapper):
    """Base of `KeyLock`. Unlike a task, a thread can not be cancelled: the block asks its lease."""

    __slots__ = ("_lease",)

    def _enter(self) -> Any:
        self._lease = self._run(self._inner._claim.wait(self._inner._timeout))
        return self._portal.wrap(self._lease)

    def _exit(self, kind: type[BaseException] | None) -> None:
        lease = self._lease
        if not lease.lost:
            self._run(lease.release())
        elif kind is None:
            raise lease.error()


class ChunkReader(Wrapper):
    """Base of `ObjectReader`, whose chunks are read ahead."""

    __slots__ = ()

    def __iter__(self) -> Iterator[bytes]:
        inner = self._inner
        return Results(self._portal, lambda: aiter(inner))
