"""Pages of infos, encoded while they are listed.

An info has a few hundred bytes, or a megabyte when a configuration has that many filters: 256 of those take a
second. So the work of an info is counted by its size, and a page ends early when it gets large; clients
request the next page at the offset they reached.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.protocol.api import encode

PAGE_BYTES = 4 * 1024 * 1024
INFO_WORK = 16 * 1024  # in the units of slices.py
BYTE_WORK = 4


class InfoPage:
    """encoded: the encoded infos. work: that of the last one."""

    def __init__(self) -> None:
        self.encoded: list[Any] = []
        self.work = 0
        self._size = 0

    def add(self, info: msgspec.Struct) -> bool:
        """Adds an info; False when the page is full. The first one always fits."""
        text = encode(info)
        self.work = INFO_WORK + BYTE_WORK * len(text)
        if self._size and self._size + len(text) > PAGE_BYTES:
            return False
        self._size += len(text)
        self.encoded.append(msgspec.Raw(text))
        return True
