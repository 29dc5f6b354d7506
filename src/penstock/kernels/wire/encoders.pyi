"""What Python sees of the encoders."""

from typing_extensions import Buffer

from penstock.kernels.wire.buffers import OutBuffer

def encode_pub(
    out: OutBuffer, subject: bytes, reply: bytes | None, header: bytes | None, payload: Buffer
) -> None:
    """PUB, or HPUB when there is a header block. The caller checked the subjects."""

def encode_msg(
    out: OutBuffer, subject: bytes, sid: bytes, reply: bytes | None, header: bytes | None, payload: Buffer
) -> None:
    """MSG, or HMSG when there is a header block."""

def encode_sub(out: OutBuffer, subject: bytes, queue: bytes | None, sid: bytes) -> None:
    """SUB subject [queue] sid."""

def encode_unsub(out: OutBuffer, sid: bytes, max_msgs: int = 0) -> None:
    """UNSUB sid [max_msgs]; 0 = now."""
