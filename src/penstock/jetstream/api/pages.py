"""Pages of infos, encoded one by one while they are listed.

An info has a few hundred bytes, or a megabyte where a configuration has that many filters: 256 of those take
a second. So the work of an info is counted by its size, and a page ends early when it gets large: clients
ask for the next page behind what they got.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.protocol.api import encode

PAGE_BYTES = 4 * 1024 * 1024
INFO_WORK = 16 * 1024  # in the units of slices.py
BYTE_WORK = 4


class InfoPage:
    """encoded: the infos, as they go into the response. work: what the last one took."""

    def __init__(self) -> None:
        self.encoded: list[Any] = []
        self.work = 0
        self._size = 0

    def add(self, info: msgspec.Struct) -> bool:
        """Adds one; False when the page is full and stays without it. The first one has room always."""
        text = encode(info)
        self.work = INFO_WORK + BYTE_WORK * len(text)
        if self._size and self._size + len(text) > PAGE_BYTES:
            return False
        self._size += len(text)
        self.encoded.append(msgspec.Raw(text))
        return True
