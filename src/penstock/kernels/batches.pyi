from typing_extensions import Buffer

from penstock.kernels.buffers import OutBuffer

def encode_appends(
    out: OutBuffer,
    subject: bytes,
    prefix: bytes,
    seq: int,
    payloads: list[bytes],
    start: int,
    count: int,
    max_payload: int,
) -> int:
    """Appends of a fast batch from a list of payloads; returns how many were written."""

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
) -> int:
    """The same from the offsets and data buffers of an Arrow column."""
