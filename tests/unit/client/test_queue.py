"""The queue between the connection and its reader."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.message import RawMessage
from penstock.client.queue import MessageQueue

pytestmark = pytest.mark.feature("client.slow-consumer-buffer")


class Queue(MessageQueue[RawMessage]):
    """As the queues of the client use it."""

    def put(self, number: int) -> None:
        self._items.append((number, b"", None, None, b""))
        self._wake()

    async def get(self) -> RawMessage | None:
        while not self._items:
            if self._ended:
                return None
            await self._wait()
        raw = self._items.popleft()
        self._note_exhausted()
        return raw


@pytest.fixture
async def queue() -> Queue:
    return Queue(asyncio.get_running_loop())


async def tick() -> None:
    await asyncio.sleep(0)


async def test_messages_come_out_in_order(queue: Queue) -> None:
    for number in range(3):
        queue.put(number)
    assert [(await queue.get() or (9,))[0] for _ in range(3)] == [0, 1, 2]


async def test_a_reader_woken_and_cancelled_at_once_passes_the_wake_up_on(queue: Queue) -> None:
    first = asyncio.ensure_future(queue.get())
    second = asyncio.ensure_future(queue.get())
    await tick()
    queue.put(7)
    first.cancel()
    async with asyncio.timeout(5):
        assert (await second or (9,))[0] == 7
    assert first.cancelled()


async def test_cancelled_readers_leave_nothing_behind(queue: Queue) -> None:
    for _ in range(10):
        reader = asyncio.ensure_future(queue.get())
        await tick()
        reader.cancel()
        await tick()
    assert not queue._getters


async def test_the_end_wakes_everybody_and_leaves_what_is_there(queue: Queue) -> None:
    queue.put(1)
    readers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await tick()
    queue.end()
    queue.end(ValueError("the first end counts"))
    assert [await reader for reader in readers][1:] == [None, None]
    assert queue._error is None


async def test_exhausted_comes_with_the_last_message(queue: Queue) -> None:
    queue.put(1)
    exhausted = queue.exhausted()
    assert not exhausted.done()
    queue.end()
    assert not exhausted.done()
    await queue.get()
    assert exhausted.done()
    empty = Queue(asyncio.get_running_loop())
    empty.end()
    assert empty.exhausted().done()
