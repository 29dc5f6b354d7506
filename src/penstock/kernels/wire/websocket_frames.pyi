"""Python interface of the reader of plain WebSocket frames."""

from typing_extensions import Buffer

class FrameReader:
    """Takes frames of one side apart. masked: whether that side masks what it sends, as clients must."""

    def __init__(self, masked: bool) -> None: ...
    def take(self, data: Buffer, start: int, room: Buffer) -> tuple[int, int]:
        """Copies payloads of plain frames from data[start:] to `room`; returns (bytes taken, bytes copied).

        Takes nothing of a frame that is not plain, and nothing of a head before all of it is there.
        """

    def other(self, data: Buffer, start: int, most: int) -> int:
        """Bytes of data[start:], up to `most`, that are of a frame that is not plain; they count as taken.

        0: none, as the data ends there or within a head.
        """
