"""What TLS and WebSocket have in common: a transport that stands on the socket's own one.

A layer is the protocol of the accepted socket and the transport of its connection. What it does not change
(pausing, limits, what waits to be sent) it asks of the transport below. Nothing is buffered here, so that
the connection's bounds (`max_pending`, the write deadline) mean the same with a layer and without.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Layer(asyncio.Transport):
    """The transport half of a layer. `_raw` is there from `connection_made` on.

    What has been read and waits for the connection's next turn waits in the layer: `_work` goes on with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raw: asyncio.Transport
        self._is_paused = False
        self._is_ending = False  # all that was read is handed over, whatever it takes
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
        """Hands over all that was read."""
        self._is_ending = True
        try:
            self._work()
        finally:
            self._is_ending = False

    def _work(self) -> None:
        """Goes on with what was read, until it is paused again."""
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
