"""What Python sees of the output buffer."""

from typing_extensions import Buffer

class OutBuffer:
    """Bytes on their way out; grows by doubling, and gives large memory back when it is taken."""

    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def write(self, data: Buffer) -> int:
        """Appends `data`. Raises MemoryError when there is no room for it."""

    def take(self) -> bytes:
        """Everything written since the last take; the buffer is empty afterwards."""

    def clear(self) -> None:
        """Drops what was written."""
