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

class RunBuffer:
    """What waits in one buffer, taken from its front on: the batches of streams."""

    @property
    def count(self) -> int: ...
    @property
    def position(self) -> int:
        """Offset of the first one not yet taken."""

    @property
    def size(self) -> int:
        """Bytes the run holds."""

    def __len__(self) -> int: ...
    def clear(self) -> None:
        """Empties the run."""

    def rewind(self) -> None:
        """Back to the first one."""
