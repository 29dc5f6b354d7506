"""Growable output buffers, and the encoders of protocol frames that write into them."""

from typing import Any

from typing_extensions import Buffer

class OutBuffer:
    """Pending output bytes; grows by doubling, and frees large memory after a take."""

    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def write(self, data: Buffer) -> int:
        """Appends `data`. Raises MemoryError when there is no room for it."""

    def take(self) -> bytes:
        """Everything written since the last take; the buffer is empty afterwards."""

    def send_to(self, fd: int) -> bool:
        """Sends to a socket what it takes without waiting, and keeps the rest. Whether nothing is left.

        What a signal handler raises comes before it or after it.
        """

    def clear(self) -> None:
        """Drops what was written."""

class PublishBuffer(OutBuffer):
    """An OutBuffer that counts the messages that a client encodes into it."""

    @property
    def messages(self) -> int: ...
    @property
    def message_bytes(self) -> int:
        """Bytes of headers and payloads; those of batches without the headers that the encoder adds."""

class RunBuffer:
    """Variable-size items in one buffer, taken from the front: the batches of streams."""

    @property
    def count(self) -> int: ...
    @property
    def position(self) -> int:
        """Offset of the first item not yet taken."""

    @property
    def size(self) -> int:
        """Bytes in the run."""

    def __len__(self) -> int: ...
    def clear(self) -> None:
        """Empties the run."""

    def rewind(self) -> None:
        """Returns to the first item."""

def encode_pub(
    out: OutBuffer, subject: bytes, reply: bytes | None, header: bytes | None, payload: Buffer
) -> None:
    """PUB, or HPUB when there is a header block. The caller checked the subjects."""

def encode_known_pub(
    out: OutBuffer, subjects: dict[str, bytes], subject: str, payload: object, payload_max: int
) -> int:
    """PUB of bytes on a subject of `subjects`; returns the bytes in the buffer. -1, and nothing is written,
    for another subject, a payload that is not bytes, or one above payload_max."""

def encode_pubs(
    out: OutBuffer,
    subject: bytes,
    reply: bytes | None,
    header: bytes | None,
    payloads: list[Any],
    start: int,
    payload_max: int,
    enough: int,
) -> int:
    """PUB or HPUB for payloads[start:], until the buffer has `enough` bytes; returns the index of the next
    one. Stops before one that is not bytes, or that has more than payload_max bytes with the header."""

def encode_msg(
    out: OutBuffer, subject: bytes, sid: bytes, reply: bytes | None, header: bytes | None, payload: Buffer
) -> None:
    """MSG, or HMSG when there is a header block."""

def encode_sub(out: OutBuffer, subject: bytes, queue: bytes | None, sid: bytes) -> None:
    """SUB subject [queue] sid."""

def encode_unsub(out: OutBuffer, sid: bytes, max_msgs: int = 0) -> None:
    """UNSUB sid [max_msgs]; 0 = now."""

def encode_appends(
    out: OutBuffer,
    subject: bytes,
    prefix: bytes,
    seq: int,
    payloads: list[bytes],
    start: int,
    count: int,
    max_payload: int,
    staged: bool = False,
) -> int:
    """Messages of a batch from a list of payloads; returns how many were written. prefix: of the reply
    subjects (of an atomic batch, `staged`: of the header blocks), up to the sequence."""

def encode_column(
    out: OutBuffer,
    subject: bytes,
    prefix: bytes,
    seq: int,
    offsets: Buffer,
    wide: bool,
    data: Buffer | None,
    start: int,
    count: int,
    max_payload: int,
    staged: bool = False,
) -> int:
    """The same from the offsets and data buffers of an Arrow column."""
