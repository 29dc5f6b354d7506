"""An event loop in a thread of its own, for callers that block or have no loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """A running event loop. name: of the thread."""

    def __init__(self, name: str) -> None:
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and returns its result. Call it from other threads only."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """Cancels what still runs, and ends the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    own = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not own]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop factory, or None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return None
    return uvloop.new_event_loop
