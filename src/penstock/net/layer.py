"""Base of the TLS and WebSocket layers: a transport on top of the socket's transport.

A layer is the protocol of the accepted socket and the transport of its connection. It passes on what it does
not change: pausing, limits, the write buffer size. It has no write buffer, so that the connection's limits
(`max_pending`, the write deadline) mean the same with and without a layer.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Layer(asyncio.Transport):
    """The transport half of a layer. `_raw` is the socket's transport, set in `connection_made`.

    A layer keeps input that was read while the connection waits in the budget's queue; `_work` continues with
    it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raw: asyncio.Transport
        self._is_paused = False
        self._is_ending = False  # pass on all input, without a time limit
        self._timer: asyncio.TimerHandle | None = None  # of the handshake

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._raw.resume_reading()
        self._work()

    def finish(self) -> None:
        """Passes on all input that was read."""
        self._is_ending = True
        try:
            self._work()
        finally:
            self._is_ending = False

    def _work(self) -> None:
        """Continues with the input that was read, until reading is paused."""
        raise NotImplementedError

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
